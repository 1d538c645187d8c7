"""Log probabilities as text completions have them: OpenAI's parallel lists, and vLLM's `prompt_logprobs`.

Knows nothing of requests. Offsets count characters (code points) of the text that they belong to.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from itertools import accumulate

from minka.types import Tokenizer, TokenLogprobs, TokenProb

Lists = dict[str, list[object]]
"""`tokens`, `token_logprobs`, `top_logprobs` and `text_offset`, one entry a token."""


def legacy_logprobs(probs: Sequence[TokenLogprobs], offset: int, n_top: int | None) -> Lists:
    """Generated tokens, from character `offset` of the text on; `n_top` alternatives each, None for all there are."""
    tokens = [_spelled(entry.chosen) for entry in probs]
    starts = accumulate(map(len, tokens), initial=offset)
    return {
        "tokens": [*tokens],
        "token_logprobs": [entry.chosen.logprob for entry in probs],
        "top_logprobs": [_top(entry, n_top) for entry in probs],
        "text_offset": [start for start, _ in zip(starts, tokens, strict=False)],
    }


def prompt_lists(
    prompt: Sequence[int], probs: Sequence[TokenLogprobs], text: str, tokenizer: Tokenizer, n_top: int | None
) -> Lists:
    """The tokens of a prompt whose `text` is echoed; `probs` are those of all but the first, which has none."""
    pieces = [tokenizer.piece(token, special=True) for token in prompt]
    return {
        "tokens": [piece.decode("utf-8", "replace") for piece in pieces],
        "token_logprobs": [None, *(entry.chosen.logprob for entry in probs)],
        "top_logprobs": [None, *(_top(entry, n_top) for entry in probs)],
        "text_offset": list(_offsets(pieces, text)),
    }


def _offsets(pieces: Iterable[bytes], text: str) -> Iterable[int]:
    """Where each token begins in the text. What the tokenizer put in front of the text (BOS, a space) is at 0."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    starts = list(accumulate((len(decode(piece)) for piece in pieces), initial=0))
    front = max(0, starts[-1] - len(text))
    return (min(max(0, start - front), len(text)) for start in starts[:-1])


def joined(first: Lists, second: Lists) -> Lists:
    """The lists of two texts that follow each other."""
    return {name: [*first[name], *second[name]] for name in first}


def _top(entry: TokenLogprobs, n_top: int | None) -> dict[str, float]:
    """The most likely tokens, and the one that is there. Of two with one spelling the likelier one is told."""
    told: dict[str, float] = {}
    for prob in (*entry.top[:n_top], entry.chosen):
        told.setdefault(_spelled(prob), prob.logprob)
    return told


def _spelled(prob: TokenProb) -> str:
    return prob.piece.decode("utf-8", "replace")


def vllm_prompt_logprobs(probs: Sequence[TokenLogprobs], n_top: int) -> list[object]:
    """vLLM's `prompt_logprobs`: null for the first token, then an object by token id for each."""
    return [None, *(_by_id(entry, n_top) for entry in probs)]


def _by_id(entry: TokenLogprobs, n_top: int) -> dict[str, object]:
    ranked = {prob.id: (prob, rank) for rank, prob in enumerate(entry.top[:n_top], 1)}
    ranked.setdefault(entry.chosen.id, (entry.chosen, entry.rank))
    return {
        str(id): {"logprob": prob.logprob, "rank": rank, "decoded_token": _spelled(prob)}
        for id, (prob, rank) in ranked.items()
    }
