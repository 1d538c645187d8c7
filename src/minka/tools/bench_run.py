"""Runs the tests of a matrix: tokens per second of prompts and generation, as llama-bench measures them (llama.cpp).

Every test gets a context of its own and a warm-up; then it is repeated and timed. Knows no command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from minka.errors import UsageError
from minka.hub import check_model
from minka.native.devices import DeviceType, backends, devices
from minka.native.library import library
from minka.native.model import Model
from minka.native.own_thread import OwnThread
from minka.native.placement import EXPERTS, Placement, block_overrides
from minka.native.raw import RawBatch, RawContext, TokenList, Tokens
from minka.native.threadpool import MAX_THREADS, Pinning, parse_cpu_mask
from minka.params import ContextParams, ModelParams
from minka.tools.bench_matrix import Matrix, ModelSetup, Test
from minka.version import VERSION

MAX_POLL = 100


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How often each test is repeated, seconds of rest before it, whether it is warmed up, priority of its threads."""

    repetitions: int = 5
    delay: int = 0
    warmup: bool = True
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """What the numbers depend on besides the parameters."""

    build: str
    cpu_info: str
    gpu_info: str
    backends: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The times of one test, in nanoseconds, with what is needed to compare them with others."""

    test: Test
    machine: Machine
    model_type: str
    model_size: int
    """Bytes."""
    model_n_params: int
    test_time: datetime
    samples_ns: tuple[int, ...]

    @property
    def samples_ts(self) -> tuple[float, ...]:
        """Tokens per second of each repetition."""
        return tuple(1e9 * (self.test.n_prompt + self.test.n_gen) / ns for ns in self.samples_ns)

    @property
    def avg_ns(self) -> int:
        """Mean time."""
        return sum(self.samples_ns) // len(self.samples_ns)

    @property
    def stddev_ns(self) -> int:
        """Sample standard deviation of the time; 0 for one repetition."""
        return int(stdev(self.samples_ns)) if len(self.samples_ns) > 1 else 0

    @property
    def avg_ts(self) -> float:
        """Mean tokens per second."""
        return fmean(self.samples_ts)

    @property
    def stddev_ts(self) -> float:
        """Sample standard deviation of the tokens per second; 0 for one repetition."""
        return stdev(self.samples_ts) if len(self.samples_ts) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What is done next: `number` of `total` tests, and which part of it."""

    number: int
    total: int
    text: str


Progress = Callable[[Step], None]


def describe_machine() -> Machine:
    """This machine, by what libllama knows of it."""
    found = devices()
    cpus = [device.description for device in found if device.type in (DeviceType.CPU, DeviceType.ACCEL)]
    gpus = [device.description for device in found if device.type in (DeviceType.GPU, DeviceType.IGPU)]
    others = [name for name in backends() if name != "CPU"]
    build = f"minka-{VERSION}+libllama-{library().version}"
    return Machine(build, ", ".join(cpus), ", ".join(gpus), ",".join(others) or "CPU")


class BenchRun:
    """The tests of a matrix. Iterating measures them one by one.

    After a KeyboardInterrupt `partial` is the test that was cut short with the repetitions that were done, or None.
    """

    def __init__(self, matrix: Matrix, options: BenchOptions, progress: Progress | None = None) -> None:
        if options.repetitions < 1:
            raise UsageError(f"--repetitions must be at least 1, but got {options.repetitions}")
        self.tests = matrix.tests()
        for test in self.tests:
            check_test(test)
        self.machine = describe_machine()
        self.partial: Measured | None = None
        self._options = options
        self._report = progress or (lambda _step: None)
        self._random = np.random.default_rng(1)

    def __len__(self) -> int:
        """Tests to measure."""
        return len(self.tests)

    def __iter__(self) -> Generator[Measured]:
        with OwnThread() as thread, _Loader() as loader:
            for number, test in enumerate(self.tests, 1):
                report = partial(self._step, number)
                report("starting")
                model, depth = loader.load(test.load)
                with closing(make_context(test, model, self._options.priority)) as context:
                    time.sleep(self._options.delay)
                    yield self._measure(_Work(test, context, thread, self._random, depth), model, report)

    def _step(self, number: int, text: str) -> None:
        self._report(Step(number, len(self.tests), text))

    def _measure(self, work: _Work, model: Model, report: Callable[[str], None]) -> Measured:
        facts = model.description, model.size, model.n_params
        result = Measured(work.test, self.machine, *facts, datetime.now(UTC), samples_ns=())
        if self._options.warmup:
            report("warmup run")
            work.warm_up()
        for i in range(self._options.repetitions):
            count = f"{i + 1}/{self._options.repetitions}"
            if work.test.context.n_depth:
                report(f"depth run {count}")
            work.reset()
            report(f"{work.test.name} run {count}")
            self.partial = result = replace(result, samples_ns=(*result.samples_ns, work.run()))
        self.partial = None
        return result


class _Depth:
    """The state of a sequence that was filled with random tokens, kept for tests of the same depth."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self.state: NDArray[np.uint8] = np.empty(0, np.uint8)


class _Loader:
    """Holds one model, the one that was asked for last. Use it as a context manager."""

    def __init__(self) -> None:
        self._setup: ModelSetup | None = None
        self._model: Model | None = None
        self._depth = _Depth()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._model is not None:
            self._model.close()

    def load(self, setup: ModelSetup) -> tuple[Model, _Depth]:
        """The model, loaded unless it is already, and what is kept of its depths."""
        if self._model is None or self._setup != setup:
            if self._model is not None:
                self._model.close()
                self._model = None
            self._model, self._setup, self._depth = load(setup), setup, _Depth()
        return self._model, self._depth


class _Work:
    """What a test decodes. Tokens are random, but the first is BOS if the model wants one."""

    def __init__(
        self, test: Test, context: RawContext, thread: OwnThread, random: np.random.Generator, depth: _Depth
    ) -> None:
        self.test, self._context, self._thread = test, context, thread
        self._random, self._depth = random, depth

    def warm_up(self) -> None:
        """The whole prompt and one token, as a first run."""
        self._run(self._prompt(self.test.n_prompt, 0), self.test.n_prompt, min(self.test.n_gen, 1))

    def reset(self) -> None:
        """Empty the context and fill it up to the test's depth."""
        self._context.clear(data=False)
        n, depth = self.test.context.n_depth, self._depth
        if n and not (depth.n_tokens == n and self._thread.run(self._context, self._restore)):
            self._run(self._prompt(n, 0), n, 0)
            depth.n_tokens, depth.state = n, self._thread.run(self._context, lambda: self._context.save(0))

    def _restore(self) -> bool:
        return self._context.restore(0, self._depth.state)

    def run(self) -> int:
        """The prompt and the generation. Returns the nanoseconds that they took."""
        depth, n_prompt = self.test.context.n_depth, self.test.n_prompt
        return self._run(self._prompt(n_prompt, depth), depth + n_prompt, self.test.n_gen)

    def _run(self, prompt: list[RawBatch], pos: int, n_gen: int) -> int:
        context, tokens = self._context, self._tokens(n_gen, begins=True)
        one = context.prepare(_tokens(tokens[:1], pos)) if n_gen else None

        def work() -> int:
            start = time.perf_counter_ns()
            for batch in prompt:
                context.decode(batch)
            context.synchronize()
            if one is not None:
                context.generate(one, tokens[:, None])
            return time.perf_counter_ns() - start

        return self._thread.run(context, work)

    def _prompt(self, n_tokens: int, pos: int) -> list[RawBatch]:
        """Batches of random tokens; of each only the last token has logits."""
        size = self.test.context.n_batch
        return [
            self._context.prepare(_tokens(self._tokens(min(size, n_tokens - start), begins=not start), pos + start))
            for start in range(0, n_tokens, size)
        ]

    def _tokens(self, n: int, *, begins: bool) -> NDArray[np.int32]:
        vocab = self._context.vocab
        tokens = self._random.integers(0, vocab.n_tokens, n, np.int32)
        if begins and n and vocab.add_bos:
            tokens[0] = vocab.bos
        return tokens


def _tokens(tokens: NDArray[np.int32], pos: int) -> Tokens:
    batch = TokenList()
    batch.add(tokens, pos, [0], slice(-1, None))
    return batch.tokens()


def check_test(test: Test) -> None:
    """Raises UsageError or ModelError for a test that cannot run, before any runs."""
    load, context = test.load, test.context
    if load.fit_target or load.fit_min_ctx:
        raise UsageError(
            "--fit-target and --fit-ctx change no parameters here; `minka fit` says which ones fit the memory"
        )
    if load.n_cpu_moe < 0 or context.n_batch < 1 or context.n_ubatch < 1 or context.n_threads > MAX_THREADS:
        raise UsageError("sizes of batches must be at least 1, and threads between 1 and 512")
    if not 0 <= context.poll <= MAX_POLL:
        raise UsageError(f"--poll must be between 0 and {MAX_POLL}, but got {context.poll}")
    parse_cpu_mask(context.cpu_mask)
    check_model(Path(load.model))


def load(setup: ModelSetup) -> Model:
    """Load a model as a test wants it. Raises ModelError, and UsageError for a device that does not exist."""
    params = ModelParams(
        n_gpu_layers=setup.n_gpu_layers,
        split_mode=setup.split_mode,
        load_mode=setup.load_mode,
        main_gpu=setup.main_gpu,
        tensor_split=setup.tensor_split,
        no_host=setup.no_host,
        repack=setup.repack,
    )
    overrides = (*setup.tensor_buft_overrides, *block_overrides(setup.n_cpu_moe, EXPERTS))
    placement = Placement(devices=setup.devices, overrides=overrides, lazy_mode=setup.lazy_mode)
    return Model.load(Path(setup.model), params, placement=placement)


def make_context(test: Test, model: Model, priority: int) -> RawContext:
    """The context that a test wants, with threads of its own. Raises ModelError."""
    setup = test.context
    params = ContextParams(
        n_ctx=test.n_ctx,
        n_batch=setup.n_batch,
        n_ubatch=setup.n_ubatch,
        threads=setup.n_threads,
        flash_attn=setup.flash_attn,
        cache_type_k=setup.type_k,
        cache_type_v=setup.type_v,
        kv_offload=not setup.no_kv_offload,
    )
    pinning = Pinning(parse_cpu_mask(setup.cpu_mask), setup.cpu_strict, setup.poll, priority)
    return RawContext(model, params, embeddings=setup.embeddings, op_offload=not setup.no_op_offload, pinning=pinning)


def bench(
    matrix: Matrix,
    options: BenchOptions | None = None,
    *,
    progress: Progress | None = None,
    on_test: Callable[[Measured], None] | None = None,
) -> tuple[Measured, ...]:
    """Measure all tests of a matrix, such as `Matrix(model=("model.gguf",), n_prompt=(128, 512))`.

    `on_test` is called after each test. Raises UsageError for values that cannot be, ModelError for a model that cannot
    be loaded.
    """
    results = []
    for measured in BenchRun(matrix, options or BenchOptions(), progress):
        results.append(measured)
        if on_test is not None:
            on_test(measured)
    return tuple(results)
