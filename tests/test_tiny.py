"""The tiny models do in libllama what their docstrings promise; each promise here is one that other tests lean on."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp as libllama
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests import tiny
from tests.tiny_fixtures import WRITERS, TinyModels
from tests.tiny_vocab import learn_merges, spm_vocab

GENERATORS = ("llama", "llama-f16", "bpe", "swa", "recurrent", "hybrid")
PROMPT = "Hello world, what is the name of this place?"


class Session:
    """One model and one context of libllama, freed by `opened`."""

    def __init__(self, path: Path, *, n_ctx: int = 512, n_ubatch: int = 512, embeddings: bool = False) -> None:
        model_params = libllama.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = libllama.llama_model_load_from_file(str(path).encode(), model_params)
        assert self.model, f"libllama does not load {path.name}"
        params = libllama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_ctx, n_ubatch
        params.n_threads = params.n_threads_batch = 1
        params.embeddings, params.swa_full = embeddings, False
        self.ctx = libllama.llama_init_from_model(self.model, params)
        assert self.ctx, f"libllama makes no context for {path.name}"
        self.vocab = libllama.llama_model_get_vocab(self.model)
        self.n_vocab = libllama.llama_vocab_n_tokens(self.vocab)
        self.memory = libllama.llama_get_memory(self.ctx)

    def close(self) -> None:
        libllama.llama_free(self.ctx)
        libllama.llama_model_free(self.model)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        data = text.encode()
        tokens = (ctypes.c_int32 * (len(data) + 8))()
        n = libllama.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), add_special, parse_special)
        return list(tokens[:n])

    def detokenize(self, tokens: list[int], *, remove_special: bool = True, unparse_special: bool = False) -> bytes:
        text = ctypes.create_string_buffer(32 * len(tokens) + 32)
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        n = libllama.llama_detokenize(self.vocab, array, len(tokens), text, len(text), remove_special, unparse_special)
        return text.raw[:n]

    def decode(self, tokens: list[int]) -> None:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        assert libllama.llama_decode(self.ctx, libllama.llama_batch_get_one(array, len(tokens))) == 0

    def logits(self) -> NDArray[np.float32]:
        """The last token's logits, copied, (n_vocab,)."""
        return np.ctypeslib.as_array(libllama.llama_get_logits_ith(self.ctx, -1), (self.n_vocab,)).copy()

    def logits_after(self, tokens: list[int], *, clear_data: bool = True) -> NDArray[np.float32]:
        libllama.llama_memory_clear(self.memory, clear_data)
        self.decode(tokens)
        return self.logits()

    def greedy(self, prompt: str, n: int) -> list[int]:
        logits = self.logits_after(self.tokenize(prompt))
        out: list[int] = []
        while len(out) < n:
            out.append(int(logits.argmax()))
            self.decode(out[-1:])
            logits = self.logits()
        return out

    def is_eog(self, token: int) -> bool:
        return bool(libllama.llama_vocab_is_eog(self.vocab, token))

    def pooled(self, text: str, n: int) -> NDArray[np.float32]:
        """The pooled embedding or score of `text`, copied, (n,)."""
        self.decode(self.tokenize(text))
        return np.ctypeslib.as_array(libllama.llama_get_embeddings_seq(self.ctx, 0), (n,)).copy()


@contextmanager
def opened(path: Path, *, n_ctx: int = 512, n_ubatch: int = 512, embeddings: bool = False) -> Iterator[Session]:
    session = Session(path, n_ctx=n_ctx, n_ubatch=n_ubatch, embeddings=embeddings)
    try:
        yield session
    finally:
        session.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=GENERATORS)
def generator(request: pytest.FixtureRequest, models: TinyModels) -> Iterator[Session]:
    with opened(models(request.param)) as session:
        yield session


@pytest.fixture(scope="module", params=["llama", "bpe"])
def any_text(request: pytest.FixtureRequest, models: TinyModels) -> Iterator[Session]:
    with opened(models(request.param)) as session:
        yield session


def test_greedy_text_is_lively_and_does_not_end(generator: Session) -> None:
    for prompt in (PROMPT, "a", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"):
        tokens = generator.greedy(prompt, 64)
        assert len(set(tokens)) >= 8
        assert not any(generator.is_eog(token) for token in tokens)
        assert len(generator.detokenize(tokens).decode(errors="replace").split()) >= 8


def test_the_distribution_is_neither_flat_nor_a_spike(generator: Session) -> None:
    logits = generator.logits_after(generator.tokenize(PROMPT)).astype(np.float64)
    assert np.isfinite(logits).all()
    p = np.exp(logits - logits.max())
    p /= p.sum()
    entropy = -(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum()
    assert 0.7 < entropy < 4.5  # nats; flat would be 6.2


def test_logits_depend_on_an_early_token(generator: Session) -> None:
    one, other = (generator.tokenize(text) for text in ("the house was small and old", "his house was small and old"))
    change = np.abs(generator.logits_after(one) - generator.logits_after(other)).mean()
    assert change > 0.02


def test_decoding_is_reproducible(generator: Session) -> None:
    assert generator.greedy(PROMPT, 16) == generator.greedy(PROMPT, 16)


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        " leading, trailing and  double  spaces ",
        "tab\tnewline\n\nreturn\r\n",
        "naïve café, Grüße, жизнь, 東京, 한국어",
        "🤖 👩‍👩‍👧 🇵🇪",
        "<|im_start|>user<0x41></s>",
        '{"name": [1, 2.5, null]} it\'s . , ? !',
    ],
)
def test_text_round_trips(any_text: Session, text: str) -> None:
    assert any_text.detokenize(any_text.tokenize(text, parse_special=False)).decode() == text


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0\u2581")))
def test_any_text_round_trips(any_text: Session, text: str) -> None:
    assert any_text.detokenize(any_text.tokenize(text, parse_special=False)).decode() == text


def test_common_english_is_few_tokens_and_an_emoji_is_its_bytes(any_text: Session) -> None:
    n_chars = len(PROMPT)
    assert len(any_text.tokenize(PROMPT, add_special=False)) < 0.75 * n_chars
    assert len(any_text.tokenize("🤖", add_special=False)) == 4


def test_markers_are_single_control_tokens(any_text: Session) -> None:
    for marker in ("<|im_start|>", "<|im_end|>"):
        (token,) = any_text.tokenize(marker, add_special=False)
        assert libllama.llama_vocab_is_control(any_text.vocab, token)
        assert any_text.is_eog(token) == (marker == "<|im_end|>")
        assert len(any_text.tokenize(marker, add_special=False, parse_special=False)) > 1
    assert libllama.llama_vocab_eot(any_text.vocab) == any_text.tokenize("<|im_end|>", add_special=False)[0]


def test_special_ids(models: TinyModels) -> None:
    with opened(models("llama")) as spm:
        assert (libllama.llama_vocab_bos(spm.vocab), libllama.llama_vocab_eos(spm.vocab)) == (1, 2)
        assert libllama.llama_vocab_get_add_bos(spm.vocab)
        assert spm.tokenize("x")[0] == 1
    with opened(models("bpe")) as bpe:
        end = libllama.llama_vocab_eos(bpe.vocab)
        assert bpe.tokenize("<|endoftext|>") == [end]
        assert not libllama.llama_vocab_get_add_bos(bpe.vocab)


def test_fim_tokens_are_there_only_on_request(models: TinyModels) -> None:
    roles = (libllama.llama_vocab_fim_pre, libllama.llama_vocab_fim_suf, libllama.llama_vocab_fim_mid)
    with opened(models("llama")) as plain, opened(models("fim")) as fim:
        assert [role(plain.vocab) for role in roles] == [-1, -1, -1]
        markers = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
        assert [[role(fim.vocab)] for role in roles] == [fim.tokenize(marker, add_special=False) for marker in markers]


def test_chat_template_is_stored_unless_none(models: TinyModels, tmp_path: Path) -> None:
    with opened(models("llama")) as session:
        assert libllama.llama_model_chat_template(session.model, None) == tiny.CHATML.encode()
    with opened(tiny.write_llama(tmp_path / "bare.gguf", chat_template=None)) as session:
        assert libllama.llama_model_chat_template(session.model, None) is None


def test_space_prefix_adds_a_space(tmp_path: Path) -> None:
    with opened(tiny.write_llama(tmp_path / "prefix.gguf", space_prefix=True)) as session:
        assert session.detokenize(session.tokenize("and")) == b" and"


def test_eog_prior_makes_texts_end(tmp_path: Path) -> None:
    with opened(tiny.write_llama(tmp_path / "ends.gguf", eog_prior=4.0)) as session:
        assert any(session.is_eog(token) for token in session.greedy(PROMPT, 200))


def test_a_large_vocabulary_is_padded_and_a_small_one_refused(tmp_path: Path) -> None:
    with opened(tiny.write_llama(tmp_path / "large.gguf", n_vocab=2000)) as session:
        assert session.n_vocab == 2000
        assert not any(token > 1900 for token in session.greedy(PROMPT, 32))
    with pytest.raises(ValueError, match="n_vocab is 300"):
        spm_vocab(300)


def test_sizes_are_as_asked(tmp_path: Path) -> None:
    path = tiny.write_llama(tmp_path / "sizes.gguf", n_embd=96, n_layer=3, n_head=6, n_head_kv=3, n_ctx_train=777)
    with opened(path) as session:
        assert libllama.llama_model_n_embd(session.model) == 96
        assert libllama.llama_model_n_layer(session.model) == 3
        assert libllama.llama_model_n_head(session.model) == 6
        assert libllama.llama_model_n_head_kv(session.model) == 3
        assert libllama.llama_model_n_ctx_train(session.model) == 777


def test_sliding_window_forgets_old_positions(models: TinyModels) -> None:
    with opened(models("swa"), n_ctx=1024, n_ubatch=32) as swa, opened(models("llama"), n_ctx=1024) as full:
        assert libllama.llama_model_n_swa(swa.model) == 32
        tokens = [300 + i % 100 for i in range(600)]
        for session in (swa, full):
            session.decode(tokens)
            assert libllama.llama_memory_seq_pos_max(session.memory, 0) == 599
        assert 0 < libllama.llama_memory_seq_pos_min(swa.memory, 0) <= 600 - 32
        assert libllama.llama_memory_seq_pos_min(full.memory, 0) == 0


def test_recurrent_state_cannot_be_cut(models: TinyModels) -> None:
    with opened(models("recurrent")) as session:
        assert libllama.llama_model_is_recurrent(session.model)
        assert not libllama.llama_model_is_hybrid(session.model)
        session.decode(session.tokenize(PROMPT))
        assert not libllama.llama_memory_seq_rm(session.memory, 0, 3, -1)


def test_hybrid_has_state_and_cache(models: TinyModels) -> None:
    with opened(models("hybrid")) as session:
        assert libllama.llama_model_is_hybrid(session.model)
        assert not libllama.llama_model_is_recurrent(session.model)
        session.decode(session.tokenize(PROMPT))
        assert not libllama.llama_memory_seq_rm(session.memory, 0, 3, -1)
        partial_only = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the recurrent part alone
        part = libllama.llama_state_seq_get_size_ext(session.ctx, 0, partial_only)
        assert 0 < part < libllama.llama_state_seq_get_size(session.ctx, 0)


def test_plain_attention_can_be_cut(models: TinyModels) -> None:
    with opened(models("llama")) as session:
        assert not libllama.llama_model_is_recurrent(session.model)
        assert not libllama.llama_model_is_hybrid(session.model)
        session.decode(session.tokenize(PROMPT))
        assert libllama.llama_memory_seq_rm(session.memory, 0, 3, -1)


def test_embeddings_of_like_texts_are_close(models: TinyModels) -> None:
    with opened(models("bert"), embeddings=True) as session:
        assert libllama.llama_pooling_type(session.ctx) == libllama.LLAMA_POOLING_TYPE_MEAN
        texts = ("the old house near the sea", "an old house by the sea", "What number is seven plus three?")
        one, like, unlike = (session.pooled(text, 64) for text in texts)
        one, like, unlike = (vector / np.linalg.norm(vector) for vector in (one, like, unlike))
        assert np.isclose(np.linalg.norm(one), 1.0)
        assert one @ like > one @ unlike + 0.1


def test_wordpiece_covers_ascii_and_marks_the_rest_unknown(models: TinyModels) -> None:
    with opened(models("bert"), embeddings=True) as session:
        cls, sep, unk = 2, 3, 1
        tokens = session.tokenize("Reading xq7, zzz!", parse_special=False)
        assert (tokens[0], tokens[-1]) == (cls, sep)
        assert unk not in tokens
        assert session.tokenize("東", add_special=False) == [unk]


def test_reranker_gives_one_score_for_each_text(models: TinyModels) -> None:
    with opened(models("reranker"), embeddings=True) as session:
        assert libllama.llama_pooling_type(session.ctx) == libllama.LLAMA_POOLING_TYPE_RANK
        assert libllama.llama_model_n_cls_out(session.model) == 1
        scores = [float(session.pooled(f"what is a panda? {text}", 1)[0]) for text in ("hi", "It is a bear.", "city")]
        assert np.isfinite(scores).all()
        assert len(set(scores)) == 3


def test_lora_changes_logits_while_it_is_set(models: TinyModels) -> None:
    with opened(models("llama")) as session:
        tokens = session.tokenize(PROMPT)
        plain = session.logits_after(tokens)
        adapter = libllama.llama_adapter_lora_init(session.model, str(models("lora")).encode())
        assert adapter
        libllama.llama_set_adapters_lora(session.ctx, (type(adapter) * 1)(adapter), 1, (ctypes.c_float * 1)(1.0))
        assert np.abs(session.logits_after(tokens) - plain).max() > 0.5
        libllama.llama_set_adapters_lora(session.ctx, None, 0, None)
        assert np.array_equal(session.logits_after(tokens), plain)


@pytest.mark.parametrize("name", ["truncated", "not-gguf", "future-version"])
def test_broken_files_do_not_load(models: TinyModels, name: str) -> None:
    assert not libllama.llama_model_load_from_file(str(models(name)).encode(), libllama.llama_model_default_params())


def test_nan_weights_load_and_give_nan_logits(models: TinyModels) -> None:
    with opened(models("nan")) as session:
        assert np.isnan(session.logits_after([1, 300])).all()


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_files_are_small_quick_and_seeded(tmp_path: Path, name: str) -> None:
    learn_merges.cache_clear()
    start = time.process_time()
    path = WRITERS[name](tmp_path / "one.gguf")
    assert time.process_time() - start < 0.3  # CPU seconds, the vocabulary included
    assert path.stat().st_size < 3_000_000
    assert WRITERS[name](tmp_path / "same.gguf").read_bytes() == path.read_bytes()


def test_another_seed_is_another_model(tmp_path: Path) -> None:
    one, other = (tiny.write_llama(tmp_path / f"{seed}.gguf", seed=seed) for seed in (0, 1))
    assert one.read_bytes() != other.read_bytes()
