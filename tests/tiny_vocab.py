"""Vocabularies for the tiny models: merges learned from common English words, written in three tokenizer forms.

SentencePiece pieces with scores ("llama"), byte-level BPE with merges ("gpt2") and WordPiece ("bert"). A vocabulary
also carries a prior (logits) that the writers build into the output layer, so that random weights speak in words, not
bytes. It does not know any model architecture.
"""

from __future__ import annotations

import string
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from gguf import GGUFWriter, TokenType

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
FIM_MARKERS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")

_MOST_FREQUENT_FIRST = """
the of and to a in is it you that he was for on are with as his they be at one have this from or had by hot but some
what there we can out other were all your when up use word how said an each she which do their time if will way about
many then them would write like so these her long make thing see him two has look more day could go come did my sound
no most number who over know water than call first people may down side been now find any new work part take get place
made live where after back little only round man year came show every good me give our under name very through just
form much great think say help low line before turn cause same mean differ move right boy old too does tell sentence
set three want air well also play small end put home read hand port large spell add even land here must big high such
follow act why ask men change went light kind off need house picture try us again animal point mother world near build
self earth father head stand own page should country found answer school grow study still learn plant cover food sun
hello model token user assistant system true false null city name age weather function result value object string
"""
WORDS = tuple(dict.fromkeys(_MOST_FREQUENT_FIRST.split()))
"""Common words. The place of a word is its weight when merges are learned."""

SUFFIXES = ("s", "es", "ed", "er", "ing", "ly", "tion", "ness", "able", "ment", "al", "ful", "est", "y", "n't")

NEVER = -24.0
"""Prior of a token that greedy or sampled text must not contain by itself: control and reserved tokens."""
RAW_BYTE = -7.0
"""Prior of a token that is a single raw byte. Rare, not impossible: text may hold cut UTF-8."""
SINGLE_CHAR = -1.5
"""Prior of a token that is one printable character."""


@dataclass(frozen=True, slots=True)
class Token:
    """One row of a vocabulary. `prior` is in logits, relative to an ordinary word piece (0)."""

    text: str
    type: TokenType
    score: float = 0.0
    prior: float = 0.0


@dataclass(frozen=True, slots=True)
class Vocab:
    """A vocabulary as the GGUF keys want it. `special` maps a role ("bos", "eos", ...) to a token id."""

    model: str
    tokens: tuple[Token, ...]
    special: dict[str, int]
    add_bos: bool
    pre: str | None = None
    merges: tuple[tuple[str, str], ...] = ()
    space_prefix: bool | None = None

    def __len__(self) -> int:
        return len(self.tokens)


def spm_vocab(n_vocab: int = 512, *, fim: bool = False, space_prefix: bool = False, eog_prior: float = NEVER) -> Vocab:
    """SentencePiece style: <unk> <s> </s>, the 256 byte tokens, chat markers, printable characters, merged pieces.

    Any text without U+2581 (which stands for the space) comes back unchanged from tokenize + detokenize; with
    `space_prefix` libllama adds a space in front of text, as for Llama 2. Raises ValueError when n_vocab is too small.
    """
    head = [Token("<unk>", TokenType.UNKNOWN, prior=NEVER), _control("<s>"), _control("</s>", eog_prior)]
    byte_tokens = [Token(f"<0x{value:02X}>", TokenType.BYTE, prior=RAW_BYTE) for value in range(256)]
    markers = _markers(fim=fim, eog_prior=eog_prior)
    chars = _chars("▁" + _PRINTABLE)
    merges = learn_merges(_room(n_vocab, [*head, *byte_tokens, *markers, *chars]))
    pieces = [Token(left + right, TokenType.NORMAL, -float(rank)) for rank, (left, right) in enumerate(merges, 1)]
    tokens = _padded([*head, *byte_tokens, *markers, *pieces, *chars], n_vocab)
    special = {"bos": 1, "eos": 2, "unk": 0, **_marker_ids(tokens)}
    return Vocab("llama", tokens, special, add_bos=True, space_prefix=space_prefix)


def bpe_vocab(n_vocab: int = 512, *, fim: bool = False, eog_prior: float = NEVER) -> Vocab:
    """Byte-level BPE in GPT-2's alphabet with Qwen2's pre-tokenizer: 256 bytes, merged pieces, then the markers.

    bos and eos are both <|endoftext|> and no bos is added. Raises ValueError when n_vocab is too small.
    """
    printable = set(_PRINTABLE.encode())
    byte_tokens = [
        Token(char, TokenType.NORMAL, prior=SINGLE_CHAR if value in printable else RAW_BYTE)
        for value, char in enumerate(_byte_alphabet())
    ]
    markers = [_control("<|endoftext|>", eog_prior), *_markers(fim=fim, eog_prior=eog_prior)]
    space = _byte_alphabet()[ord(" ")]
    merges = tuple(
        (left.replace("▁", space), right.replace("▁", space))
        for left, right in learn_merges(_room(n_vocab, [*byte_tokens, *markers]))
    )
    pieces = [Token(left + right, TokenType.NORMAL) for left, right in merges]
    tokens = _padded([*byte_tokens, *pieces, *markers], n_vocab)
    end = 256 + len(pieces)
    special = {"bos": end, "eos": end, **_marker_ids(tokens)}
    return Vocab("gpt2", tokens, special, add_bos=False, pre="qwen2", merges=merges)


def wordpiece_vocab() -> Vocab:
    """WordPiece, lower case: word starts carry U+2581, continuations are bare (as GGUF stores BERT vocabularies)."""
    control = [_control(text) for text in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    starts = [char for char in _PRINTABLE if not char.isupper()]
    inner = string.ascii_lowercase + string.digits
    texts = [*(f"▁{text}" for text in (*starts, *WORDS)), *inner, *SUFFIXES]
    words = [Token(text, TokenType.NORMAL) for text in dict.fromkeys(texts)]
    special = {"bos": 2, "sep": 3, "unk": 1, "pad": 0, "mask": 4}
    return Vocab("bert", (*control, *words), special, add_bos=True)


def write_vocab(writer: GGUFWriter, vocab: Vocab) -> None:
    """Add the `tokenizer.ggml.*` keys of `vocab`."""
    writer.add_tokenizer_model(vocab.model)
    if vocab.pre is not None:
        writer.add_tokenizer_pre(vocab.pre)
    writer.add_token_list([token.text for token in vocab.tokens])
    writer.add_token_types([token.type for token in vocab.tokens])
    if vocab.model == "llama":
        writer.add_token_scores([token.score for token in vocab.tokens])
    if vocab.merges:
        writer.add_token_merges([f"{left} {right}" for left, right in vocab.merges])
    for role, token_id in vocab.special.items():
        key = {"unk": "unknown", "sep": "seperator", "pad": "padding"}.get(
            role, role
        )  # "seperator": sic, in the format
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", token_id)
    writer.add_add_bos_token(vocab.add_bos)
    if vocab.space_prefix is not None:
        writer.add_add_space_prefix(vocab.space_prefix)


@cache
def learn_merges(n_merges: int) -> tuple[tuple[str, str], ...]:
    """The first `n_merges` byte-pair merges of WORDS, each word led by U+2581; fewer once every word is one piece."""
    words = [(["▁", *word], 1000 // (rank + 10)) for rank, word in enumerate(WORDS)]
    counts: Counter[tuple[str, str]] = Counter()
    for pieces, weight in words:
        for pair in pairwise(pieces):
            counts[pair] += weight
    merges: list[tuple[str, str]] = []
    while len(merges) < n_merges and counts:
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        for pieces, weight in words:
            _merge(pieces, best, weight, counts)
        counts = +counts  # drops the pairs that are gone
    return tuple(merges)


_PRINTABLE = "".join(chr(value) for value in range(0x21, 0x7F))


def _merge(pieces: list[str], pair: tuple[str, str], weight: int, counts: Counter[tuple[str, str]]) -> None:
    """Merge every `pair` in the word `pieces`, in place, and keep `counts` true."""
    if pair not in pairwise(pieces):
        return
    for old in pairwise(pieces):
        counts[old] -= weight
    at = 0
    while at < len(pieces) - 1:
        if (pieces[at], pieces[at + 1]) == pair:
            pieces[at : at + 2] = ["".join(pair)]
        at += 1
    for new in pairwise(pieces):
        counts[new] += weight


def _control(text: str, prior: float = NEVER) -> Token:
    return Token(text, TokenType.CONTROL, prior=prior)


def _markers(*, fim: bool, eog_prior: float) -> list[Token]:
    markers = [_control(IM_START), _control(IM_END, eog_prior)]
    return [*markers, *(_control(text) for text in FIM_MARKERS)] if fim else markers


def _marker_ids(tokens: tuple[Token, ...]) -> dict[str, int]:
    roles = dict(zip((IM_END, *FIM_MARKERS), ("eot", "fim_pre", "fim_suf", "fim_mid"), strict=True))
    return {roles[token.text]: token_id for token_id, token in enumerate(tokens) if token.text in roles}


def _chars(chars: str) -> list[Token]:
    # Below every merge, so that a merge wins over spelling.
    return [Token(char, TokenType.NORMAL, -1000.0 - rank, SINGLE_CHAR) for rank, char in enumerate(chars)]


def _room(n_vocab: int, tokens: list[Token]) -> int:
    if n_vocab < len(tokens):
        raise ValueError(f"n_vocab is {n_vocab}, but bytes, characters and markers alone are {len(tokens)} tokens")
    return n_vocab - len(tokens)


def _padded(tokens: list[Token], n_vocab: int) -> tuple[Token, ...]:
    reserved = (Token(f"<|reserved_{i}|>", TokenType.UNUSED, prior=NEVER) for i in range(n_vocab - len(tokens)))
    return (*tokens, *reserved)


@cache
def _byte_alphabet() -> tuple[str, ...]:
    """GPT-2's printable stand-in for each byte: itself if visible in Latin-1, else the next code point from 256."""
    alphabet: list[str] = []
    n_hidden = 0
    for value in range(256):
        visible = 0x21 <= value <= 0x7E or 0xA1 <= value <= 0xAC or value >= 0xAE
        alphabet.append(chr(value) if visible else chr(256 + n_hidden))
        n_hidden += not visible
    return tuple(alphabet)
