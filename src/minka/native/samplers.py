"""Sampling chains of libllama, put together as llama.cpp does, so that a seed gives the text that it gives there.

One entry of `CONSTRUCTORS` per sampler name; the order of the chain is the order of `SamplingParams.samplers`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from minka.errors import NativeError, RequestError
from minka.native.library import Library
from minka.native.vocab import Vocab
from minka.params import SamplingParams

MIROSTAT_M = 100
"""Tokens that mirostat 1 estimates from, as in llama.cpp."""

MIN_TEMPERATURE = 1e-6
"""A lower temperature always picks the most likely token."""

Pointer = object
Constructor = Callable[[Library, Vocab, SamplingParams, int], Pointer]


def _penalties(lib: Library, vocab: Vocab, p: SamplingParams, _seed: int) -> Pointer:
    return lib.slow.llama_sampler_init_penalties(
        vocab.n_tokens, p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
    )


def _dry(lib: Library, vocab: Vocab, p: SamplingParams, _seed: int) -> Pointer:
    breakers = [b.encode("utf-8", "replace") for b in p.dry_sequence_breakers]
    return lib.slow.llama_sampler_init_dry(
        vocab.pointer,
        p.dry_multiplier,
        p.dry_base,
        p.dry_allowed_length,
        p.dry_penalty_last_n,
        (ctypes.c_char_p * max(len(breakers), 1))(*breakers),
        len(breakers),
    )


def _xtc(lib: Library, _vocab: Vocab, p: SamplingParams, seed: int) -> Pointer:
    return lib.slow.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, seed)


def _temperature(lib: Library, _vocab: Vocab, p: SamplingParams, _seed: int) -> Pointer:
    # logit / temperature must stay a float32, so a temperature near 0 is 0.
    temperature = p.temperature if p.temperature >= MIN_TEMPERATURE else 0.0
    return lib.slow.llama_sampler_init_temp_ext(temperature, p.dynatemp_range, p.dynatemp_exponent)


CONSTRUCTORS: Mapping[str, Constructor] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": lambda lib, _v, p, _s: lib.slow.llama_sampler_init_top_n_sigma(p.top_n_sigma),
    "top_k": lambda lib, _v, p, _s: lib.slow.llama_sampler_init_top_k(p.top_k),
    "typ_p": lambda lib, _v, p, _s: lib.slow.llama_sampler_init_typical(p.typical_p, p.min_keep),
    "top_p": lambda lib, _v, p, _s: lib.slow.llama_sampler_init_top_p(p.top_p, p.min_keep),
    "min_p": lambda lib, _v, p, _s: lib.slow.llama_sampler_init_min_p(p.min_p, p.min_keep),
    "xtc": _xtc,
    "temperature": _temperature,
    "infill": lambda lib, v, _p, _s: lib.slow.llama_sampler_init_infill(v.pointer),
}


def _constructors(p: SamplingParams) -> list[Constructor]:
    """The chain without its biases: truncation and temperature in the asked order, then what picks."""
    if p.mirostat == 1:
        pick: Constructor = lambda lib, v, p, seed: lib.slow.llama_sampler_init_mirostat(  # noqa: E731
            v.n_tokens, seed, p.mirostat_tau, p.mirostat_eta, MIROSTAT_M
        )
        return [_temperature, pick]
    if p.mirostat == 2:
        return [
            _temperature,
            lambda lib, _v, p, seed: lib.slow.llama_sampler_init_mirostat_v2(seed, p.mirostat_tau, p.mirostat_eta),
        ]
    chain = [CONSTRUCTORS[name] for name in p.samplers if name != "adaptive_p"]
    if "adaptive_p" in p.samplers:
        return [
            *chain,
            lambda lib, _v, p, s: lib.slow.llama_sampler_init_adaptive_p(p.adaptive_target, p.adaptive_decay, s),
        ]
    return [*chain, lambda lib, _v, _p, seed: lib.slow.llama_sampler_init_dist(seed)]


def biases(vocab: Vocab, p: SamplingParams) -> dict[int, float]:
    """Additions to logits: what the request asks, what the model forbids, and no end of text if it is ignored."""
    bias = dict(p.logit_bias)
    forbidden = (*vocab.suppressed, *(vocab.eog if p.ignore_eos else ()))
    return bias | dict.fromkeys(forbidden, float("-inf"))


def picks_maximum(p: SamplingParams) -> bool:
    """Whether the chain always picks the largest (biased) logit, so that no candidate array has to be built."""
    active = set(p.samplers)
    return (
        p.temperature < MIN_TEMPERATURE
        and p.dynatemp_range <= 0
        and "temperature" in active
        and not p.mirostat
        and not p.post_sampling_probs
        and not active & {"adaptive_p", "infill"}
        and (
            "penalties" not in active or (p.repeat_penalty == 1 and not p.frequency_penalty and not p.presence_penalty)
        )
        and ("dry" not in active or not p.dry_multiplier)
        and ("typ_p" not in active or p.typical_p >= 1)
        and ("xtc" not in active or p.xtc_probability <= 0)
    )


class Greedy:
    """Implements `protocol.Sampler` for `picks_maximum`: numpy's argmax over the row."""

    def __init__(self, logits: Callable[[int], np.ndarray], bias: Mapping[int, float]) -> None:
        self._logits = logits
        self._ids = np.fromiter(bias.keys(), dtype=np.int64)
        self._values = np.fromiter(bias.values(), dtype=np.float32)

    def sample(self, row: int) -> int:
        """The largest logit's token, the first of equals."""
        logits = self._logits(row)
        if len(self._ids):
            logits = logits.copy()  # the row may be picked from again
            logits[self._ids] += self._values
        token = int(logits.argmax())
        _check_finite(float(logits[token]))
        return token

    guess = sample

    def candidates(self) -> Sequence[tuple[int, float]]:
        """Nothing: a request that wants candidates does not take this path."""
        return ()

    def accept(self, tokens: Sequence[int]) -> None:
        """Nothing to count."""

    def close(self) -> None:
        """Nothing to free."""


class Chain:
    """Implements `protocol.Sampler` with a chain in C. The samplers of a context share `candidates`, which then are in
    the processor's cache; what is left in them is looked at before another one picks."""

    def __init__(
        self,
        library: Library,
        vocab: Vocab,
        logits: Callable[[int], np.ndarray],
        candidates: Candidates,
        params: SamplingParams,
        seed: int,
    ) -> None:
        self._fast, self._slow = library.fast, library.slow
        self._logits, self._candidates = logits, candidates
        self._window = max(params.repeat_last_n, params.dry_penalty_last_n)
        self._tells = params.post_sampling_probs
        self._chain = self._slow.llama_sampler_chain_init(self._slow.llama_sampler_chain_default_params())
        bias = biases(vocab, params)
        parts: list[Constructor] = [partial(_logit_bias, bias=bias)] if bias else []
        for construct in [*parts, *_constructors(params)]:
            part = construct(library, vocab, params, seed)
            if not part:
                self.close()
                raise RequestError(
                    "these sampling parameters are contradictory: libllama cannot build a sampler of them"
                )
            self._slow.llama_sampler_chain_add(self._chain, part)

    def sample(self, row: int) -> int:
        """Run the chain over a logits row; the picked token is accepted."""
        token = self.guess(row)
        self._fast.llama_sampler_accept(self._chain, token)
        return token

    def guess(self, row: int) -> int:
        """Run the chain over a logits row; the picked token is yet to be accepted."""
        logits = self._logits(row)
        _check_finite(float(logits.max()))
        return self._candidates.pick(self._chain, logits)

    def candidates(self) -> Sequence[tuple[int, float]]:
        """(token, probability) left after the chain, best first; empty unless post_sampling_probs was set."""
        return self._candidates.left() if self._tells else ()

    def accept(self, tokens: Sequence[int]) -> None:
        """Count prompt tokens. Only the window of the penalties looks back, so older ones are skipped."""
        for token in tokens[max(0, len(tokens) - self._window) :]:
            self._fast.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        """Free the chain and its parts. Idempotent."""
        if self._chain:
            self._fast.llama_sampler_free(self._chain)
            self._chain = None


class Candidates:
    """A llama_token_data_array of our own: chains run over it one after another, and what one left can be looked at."""

    def __init__(self, library: Library, n_vocab: int) -> None:
        self._fast, self._slow = library.fast, library.slow
        # Plain numbers, as numpy copies structures field by field, which takes ten times as long.
        self._fresh = np.zeros((n_vocab, 3), np.float32)
        self._fresh[:, 0].view(np.int32)[:] = np.arange(n_vocab)
        self._rows = self._fresh.copy()
        """llama_token_data: id (of its own type), logit, p."""
        self._array = self._slow.llama_token_data_array()
        self._begin = self._rows.ctypes.data_as(self._slow.llama_token_data_p)

    def pick(self, chain: Pointer, logits: np.ndarray) -> int:
        """Run a chain over logits of shape (n_vocab,). Raises NativeError if it leaves no token."""
        np.copyto(self._rows, self._fresh)
        self._rows[:, 1] = logits
        self._array.data, self._array.size = self._begin, len(self._rows)
        self._array.selected, self._array.sorted = -1, False
        self._fast.llama_sampler_apply(chain, ctypes.byref(self._array))
        if not 0 <= self._array.selected < self._array.size:
            raise NativeError("the sampler chain left no token to pick")
        return int(self._left()[self._array.selected, 0].view(np.int32))

    def left(self) -> list[tuple[int, float]]:
        """(token, probability) of what the last chain left, best first."""
        rows = self._left()
        rows = rows[np.argsort(-rows[:, 2], kind="stable")]
        return [(int(token), float(p)) for token, p in zip(rows[:, 0].view(np.int32), rows[:, 2], strict=True)]

    def _left(self) -> NDArray[np.float32]:
        """The rows that the array is about now: XTC moves its beginning."""
        begin = ctypes.addressof(self._array.data.contents)
        first = (begin - self._rows.ctypes.data) // self._rows.strides[0]
        return self._rows[first : first + self._array.size]


def _logit_bias(lib: Library, vocab: Vocab, _p: SamplingParams, _seed: int, *, bias: Mapping[int, float]) -> Pointer:
    array = (lib.slow.llama_logit_bias * len(bias))(*[lib.slow.llama_logit_bias(t, b) for t, b in bias.items()])
    return lib.slow.llama_sampler_init_logit_bias(vocab.n_tokens, len(bias), array)


def _check_finite(maximum: float) -> None:
    """A chain over NaN or without any candidate would abort the process."""
    if not np.isfinite(maximum):
        raise NativeError("the model computed no usable logits (NaN or infinity); its file may be damaged")
