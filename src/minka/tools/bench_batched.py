"""Tokens per second of many sequences at once, as llama-batched-bench measures them (llama.cpp, tools/batched-bench).

For every prompt length, generation length and number of sequences: all prompts in as few batches as they fit in, then
one token of each sequence a step. Knows no command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minka.errors import UsageError
from minka.hub import locate
from minka.native.context_params import FLASH_ATTN
from minka.native.model import Model
from minka.native.own_thread import OwnThread
from minka.native.raw import RawContext, TokenList
from minka.params import ContextParams, ModelParams
from minka.tools.scoring_context import Hardware, model_params

WARM_UP = 16
"""Tokens of the first, untimed batch."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Prompt lengths, generation lengths and numbers of sequences, all combinations of which are measured.

    `shared`: all sequences have one prompt, which is computed once. `separate`: sequences generate one after another.
    """

    n_pp: tuple[int, ...]
    n_tg: tuple[int, ...]
    n_pl: tuple[int, ...]
    shared: bool = False
    separate: bool = False

    def check(self) -> None:
        """Raises UsageError if there is nothing to measure."""
        if not (self.n_pp and self.n_tg and self.n_pl) or min(self.n_pl) < 1 or min(self.n_pp + self.n_tg) < 0:
            raise UsageError("give lengths of prompts (-npp), of generations (-ntg) and numbers of sequences (-npl)")


@dataclass(frozen=True, slots=True)
class Setup:
    """The context that was measured. `flash_attn` is -1 for auto, 0, 1."""

    n_kv_max: int
    n_batch: int
    n_ubatch: int
    flash_attn: int
    shared: bool
    separate: bool
    n_gpu_layers: int
    n_threads: int
    n_threads_batch: int


@dataclass(frozen=True, slots=True)
class BatchedResult:
    """Seconds of the prompts and of the generation of `pl` sequences, which take `n_kv` cells."""

    setup: Setup
    pp: int
    tg: int
    pl: int
    n_kv: int
    t_pp: float
    t_tg: float

    @property
    def n_prompt(self) -> int:
        """Prompt tokens that were computed."""
        return self.pp if self.setup.shared else self.pl * self.pp

    @property
    def seconds(self) -> float:
        """Both times together."""
        return self.t_pp + self.t_tg

    @property
    def speed_pp(self) -> float:
        """Prompt tokens per second."""
        return _rate(self.n_prompt, self.t_pp)

    @property
    def speed_tg(self) -> float:
        """Generated tokens per second, of all sequences together."""
        return _rate(self.pl * self.tg, self.t_tg)

    @property
    def speed(self) -> float:
        """All tokens per second."""
        return _rate(self.n_prompt + self.pl * self.tg, self.seconds)


def _rate(n: int, seconds: float) -> float:
    return n / seconds if seconds > 0 else 0.0


class BatchedRun:
    """All combinations that fit the context. Iterating measures them one by one."""

    def __init__(self, context: RawContext, thread: OwnThread, shapes: Shapes, setup: Setup) -> None:
        shapes.check()
        self._context, self._thread, self._shapes, self.setup = context, thread, shapes, setup
        self._random = np.random.default_rng(1)
        wanted = [(pp, tg, pl) for pp in shapes.n_pp for tg in shapes.n_tg for pl in shapes.n_pl]
        self._fitting = [shape for shape in wanted if self._n_kv(*shape) <= context.n_ctx]
        self.skipped = [shape for shape in wanted if self._n_kv(*shape) > context.n_ctx]

    def __len__(self) -> int:
        """Combinations to measure."""
        return len(self._fitting)

    def _n_kv(self, pp: int, tg: int, pl: int) -> int:
        """Cells that a combination needs."""
        if not self._shapes.shared:
            return pl * (pp + tg)
        return (pp if self._context.kv_unified else pl * pp) + pl * tg

    def __iter__(self) -> Generator[BatchedResult]:
        self._warm_up()
        for pp, tg, pl in self._fitting:
            self._context.clear(data=False)
            t_pp = self._prompts(pp, pl)
            if self._shapes.shared:
                self._share(pp, pl)
            t_tg = self._generate_separately(pp, tg, pl) if self._shapes.separate else self._generate(pp, tg, pl)
            yield BatchedResult(self.setup, pp, tg, pl, self._n_kv(pp, tg, pl), t_pp, t_tg)

    def _warm_up(self) -> None:
        batch = TokenList()
        batch.add(self._tokens(WARM_UP), 0, [0])
        self._decode(batch)

    def _prompts(self, pp: int, pl: int) -> float:
        batch = TokenList()
        for seq in range(1 if self._shapes.shared else pl):
            batch.add(self._tokens(pp), 0, [seq], slice(-1, None))
        return self._decode(batch)

    def _decode(self, batch: TokenList) -> float:
        """Decode in as few pieces as the batch size allows. Returns the seconds that it took."""
        context, tokens = self._context, batch.tokens()
        pieces = [
            context.prepare(tokens.part(start, min(start + context.n_batch, len(tokens))))
            for start in range(0, len(tokens), context.n_batch)
        ]

        def work() -> float:
            start = time.perf_counter()
            for piece in pieces:
                context.decode(piece)
            context.synchronize()
            return time.perf_counter() - start

        return self._thread.run(context, work)

    def _share(self, pp: int, pl: int) -> None:
        """Give the prompt of sequence 0 to all others."""
        context = self._context
        for seq in range(1, pl):
            context.copy_sequence(0, seq)
        if not context.kv_unified:
            # Between sequences with cells of their own the data are copied by the next decode, which must not be timed.
            batch = TokenList()
            batch.add(self._tokens(1), pp, [0], slice(None))
            self._decode(batch)
            context.cut(0, pp)

    def _generate(self, pp: int, tg: int, pl: int) -> float:
        """A token of each sequence a step."""
        batch = TokenList()
        for seq in range(pl):
            batch.add(self._tokens(1), pp, [seq], slice(None))
        return self._steps(batch, tg)

    def _generate_separately(self, pp: int, tg: int, pl: int) -> float:
        """All tokens of one sequence, then of the next."""
        seconds = 0.0
        for seq in range(pl):
            batch = TokenList()
            batch.add(self._tokens(1), pp, [seq], slice(None))
            seconds += self._steps(batch, tg)
        return seconds

    def _steps(self, batch: TokenList, n: int) -> float:
        context, prepared = self._context, self._context.prepare(batch.tokens())
        tokens = self._random.integers(0, context.vocab.n_tokens, (n, batch.n_tokens), np.int32)

        def work() -> float:
            start = time.perf_counter()
            context.generate(prepared, tokens)
            return time.perf_counter() - start

        return self._thread.run(context, work)

    def _tokens(self, n: int) -> NDArray[np.int32]:
        return self._random.integers(0, self._context.vocab.n_tokens, n, np.int32)


def open_batched(
    model: Model, params: ModelParams, context: ContextParams, shapes: Shapes, hardware: Hardware
) -> tuple[RawContext, Setup]:
    """The context for some shapes, which the caller closes, and its description. Raises ModelError, UsageError."""
    shapes.check()
    n_ctx = context.n_ctx or model.n_ctx_train
    raw = RawContext(
        model,
        replace(context, n_ctx=n_ctx),
        n_seq_max=max(shapes.n_pl),
        op_offload=params.op_offload,
        pinning=hardware.pinning,
        batch_pinning=hardware.batch_pinning,
    )
    try:
        if hardware.adapters:
            raw.adapt(hardware.adapters)
    except BaseException:
        raw.close()
        raise
    return raw, Setup(
        n_kv_max=raw.n_ctx,
        n_batch=context.n_batch,
        n_ubatch=context.n_ubatch,
        flash_attn=FLASH_ATTN[context.flash_attn],
        shared=shapes.shared,
        separate=shapes.separate,
        n_gpu_layers=params.n_gpu_layers,
        n_threads=raw.n_threads,
        n_threads_batch=raw.n_threads_batch,
    )


def batched_bench(
    model: str | Path | ModelParams,
    n_pp: Sequence[int],
    n_tg: Sequence[int],
    n_pl: Sequence[int],
    *,
    shared: bool = False,
    separate: bool = False,
    context: ContextParams | None = None,
    hardware: Hardware | None = None,
    on_result: Callable[[BatchedResult], None] | None = None,
) -> tuple[BatchedResult, ...]:
    """Measure every prompt length with every generation length and number of sequences; see `Shapes`.

    Those that do not fit `context.n_ctx` (0: what the model was trained for) are left out. `on_result` is called after
    each one. Raises UsageError for no shapes, ModelError for a model that cannot be loaded.
    """
    shapes = Shapes(tuple(n_pp), tuple(n_tg), tuple(n_pl), shared, separate)
    params, where = model_params(model), hardware or Hardware()
    with closing(Model.load(locate(params).path, params, placement=where.placement)) as loaded:
        raw, setup = open_batched(loaded, params, context or ContextParams(), shapes, where)
        results = []
        with closing(raw), OwnThread() as thread:
            for result in BatchedRun(raw, thread, shapes, setup):
                results.append(result)
                if on_result is not None:
                    on_result(result)
    return tuple(results)
