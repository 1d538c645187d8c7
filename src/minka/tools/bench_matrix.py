"""What `bench` measures: lists of values for every parameter, and the tests that all their combinations make.

Names, defaults, ranges and the order of the tests are llama-bench's (llama.cpp, tools/llama-bench); the order loads a
model as seldom as it can. Knows no command line and computes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product

from minka.errors import UsageError
from minka.native.machine import physical_cores

_RANGE = re.compile(r"(-?[0-9]{1,18})(?:-([0-9]{1,18})(?:([+*])([0-9]{1,18}))?)?")
MAX_VALUES = 10_000
"""Values of one range; more are a slip of the keyboard."""
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """How a model is loaded. Two tests with the same setup share it."""

    model: str
    fit_target: int
    fit_min_ctx: int
    n_gpu_layers: int
    n_cpu_moe: int
    split_mode: str
    load_mode: str
    lazy_mode: str
    main_gpu: int
    devices: tuple[str, ...] | None
    """None is libllama's choice, empty the CPU alone."""
    tensor_split: tuple[float, ...]
    tensor_buft_overrides: tuple[tuple[str, str], ...]
    no_host: bool
    repack: bool


@dataclass(frozen=True, slots=True)
class ContextSetup:
    """How a context is made. Sizes in tokens."""

    embeddings: bool
    no_op_offload: bool
    n_batch: int
    n_ubatch: int
    type_k: str
    type_v: str
    no_kv_offload: bool
    flash_attn: str
    n_threads: int
    cpu_mask: str
    cpu_strict: bool
    n_depth: int
    """Tokens that the context holds before what is measured."""
    poll: int


@dataclass(frozen=True, slots=True)
class Test:
    """One test: `n_prompt` tokens in batches, then `n_gen` tokens one by one."""

    load: ModelSetup
    context: ContextSetup
    n_prompt: int
    n_gen: int

    @property
    def n_ctx(self) -> int:
        """Positions that it needs."""
        return self.n_prompt + self.n_gen + self.context.n_depth

    @property
    def name(self) -> str:
        """Such as pp512, tg128 or pp512+tg128 @ d1024."""
        parts = [f"pp{self.n_prompt}"] * (self.n_prompt > 0) + [f"tg{self.n_gen}"] * (self.n_gen > 0)
        return "+".join(parts) + (f" @ d{self.context.n_depth}" if self.context.n_depth else "")


@dataclass(frozen=True, slots=True)
class Matrix:
    """The values of every parameter. The fields are those of ModelSetup and ContextSetup, in the order of the loops."""

    model: tuple[str, ...] = ()
    fit_target: tuple[int, ...] = (0,)
    fit_min_ctx: tuple[int, ...] = (0,)
    n_gpu_layers: tuple[int, ...] = (-1,)
    n_cpu_moe: tuple[int, ...] = (0,)
    split_mode: tuple[str, ...] = ("layer",)
    load_mode: tuple[str, ...] = ("auto",)
    lazy_mode: tuple[str, ...] = ("auto",)
    main_gpu: tuple[int, ...] = (0,)
    devices: tuple[tuple[str, ...] | None, ...] = (None,)
    tensor_split: tuple[tuple[float, ...], ...] = ((),)
    tensor_buft_overrides: tuple[tuple[tuple[str, str], ...], ...] = ((),)
    no_host: tuple[bool, ...] = (False,)
    repack: tuple[bool, ...] = (True,)
    embeddings: tuple[bool, ...] = (False,)
    no_op_offload: tuple[bool, ...] = (False,)
    n_batch: tuple[int, ...] = (2048,)
    n_ubatch: tuple[int, ...] = (512,)
    type_k: tuple[str, ...] = ("f16",)
    type_v: tuple[str, ...] = ("f16",)
    no_kv_offload: tuple[bool, ...] = (False,)
    flash_attn: tuple[str, ...] = ("auto",)
    n_threads: tuple[int, ...] = (0,)
    """0 is the number of physical cores."""
    cpu_mask: tuple[str, ...] = ("0x0",)
    cpu_strict: tuple[bool, ...] = (False,)
    n_depth: tuple[int, ...] = (0,)
    poll: tuple[int, ...] = (50,)
    n_prompt: tuple[int, ...] = (512,)
    n_gen: tuple[int, ...] = (128,)
    n_pg: tuple[tuple[int, int], ...] = ()
    """Tests of a prompt and a generation together."""

    def varies(self, name: str) -> bool:
        """Whether a parameter has several values or another than the default: then a table has a column for it."""
        return bool(getattr(self, name) != getattr(_DEFAULTS, name))

    def tests(self) -> list[Test]:
        """All tests, in order. Raises UsageError if there are none."""
        found = list(self._tests())
        if not found:
            raise UsageError("there is nothing to measure: all of -p, -n and -pg are 0 or empty")
        return found

    def _tests(self) -> Iterator[Test]:
        names = [*_names(ModelSetup), *_names(ContextSetup)]
        n_load = len(_names(ModelSetup))
        shapes = [(n, 0) for n in self.n_prompt] + [(0, n) for n in self.n_gen] + list(self.n_pg)
        for values in product(*(getattr(self, name) for name in names)):
            load, context = ModelSetup(*values[:n_load]), ContextSetup(*values[n_load:])
            if context.n_threads == 0:
                context = replace(context, n_threads=physical_cores())
            yield from (Test(load, context, n_prompt, n_gen) for n_prompt, n_gen in shapes if n_prompt or n_gen)


_DEFAULTS = Matrix()


def _names(cls: type[ModelSetup | ContextSetup]) -> list[str]:
    return [field.name for field in fields(cls)]


# -- texts to values


def parse_range(text: str, *, low: int = 0, high: int = INT32_MAX) -> tuple[int, ...]:
    """Integers from a list of N, FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR. Raises UsageError."""
    values: list[int] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise UsageError(f"{word!r} is no number and no range FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR")
        first, step = int(match[1]), int(match[4] or 1)
        values.extend(_expand(word, first, first if match[2] is None else int(match[2]), match[3] or "+", step))
    for value in values:
        if not low <= value <= high:
            raise UsageError(f"{value} is outside of {low} to {high}")
    return tuple(values)


def _expand(word: str, first: int, last: int, operator: str, step: int) -> list[int]:
    values: list[int] = []
    value = first
    while value <= last:
        values.append(value)
        value = value + step if operator == "+" else value * step
        if value <= values[-1] or len(values) > MAX_VALUES:
            raise UsageError(f"the range {word!r} has no end")
    return values


def parse_bools(text: str) -> tuple[bool, ...]:
    """Bools from a list of 0 and 1. Raises UsageError."""
    words = text.split(",")
    if any(word not in ("0", "1") for word in words):
        raise UsageError(f"{text!r} must be 0, 1 or both")
    return tuple(word == "1" for word in words)


def parse_words(text: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    """Words from a list. Raises UsageError for one that is not among the choices."""
    words = tuple(text.split(","))
    for word in words:
        if word not in choices:
            raise UsageError(f"{word!r} is not one of {', '.join(choices)}")
    return words


def parse_splits(text: str) -> tuple[tuple[float, ...], ...]:
    """Proportions such as 3/1, several with commas between. Raises UsageError."""
    try:
        splits = tuple(tuple(float(part) for part in re.split("[;/]+", word)) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r} is no list of proportions such as 3/1") from None
    if any(not 0 <= part < float("inf") for split in splits for part in split):
        raise UsageError(f"{text!r} has a proportion that is negative or no number")
    return splits


def parse_pair(text: str) -> tuple[int, int]:
    """PP,TG. Raises UsageError."""
    words = text.split(",")
    if len(words) != 2 or not all(re.fullmatch("[0-9]{1,10}", word) and int(word) <= INT32_MAX for word in words):
        raise UsageError(f"{text!r} is no pair PP,TG of prompt and generation lengths")
    return int(words[0]), int(words[1])
