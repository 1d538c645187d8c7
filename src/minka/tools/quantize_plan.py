"""What a quantization will do to each tensor, read from libllama's dry run, and what would stop it half-way.

libllama finds some faults only when it comes to the tensor, hours into a large model, and some end the process. They
can all be told from the plan. Knows no file but the names in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from minka.errors import ModelError, NativeError, UsageError
from minka.ggufs.layout import TENSOR_TYPES, TensorType
from minka.tools.quantize_types import NEEDS_IMPORTANCE, VERY_LOW

_LINE = re.compile(
    r"\[ *(?P<no>\d+)/ *\d+\] (?P<name>\S+) +- \[(?P<dims>[\d, ]+)\], type = +(?P<source>\w+), "
    r"size = +[\d.]+ MiB(?: -> +[\d.]+ MiB \((?P<target>\w+)\))?"
)
_STEP = re.compile(r"\[ *(?P<no>\d+)/ *\d+\] ")
_FALLBACK = re.compile(
    r"warning: (?P<name>\S+) +- ncols +(?P<columns>\d+) not divisible by +\d+ \(required for type +(?P<wanted>\w+)\)"
    r".*-> falling back to +(?P<target>\w+)"
)
_BY_NAME = {row.name: row for row in TENSOR_TYPES.values()}
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_LENIENT = {*EMBEDDINGS, "output.weight"}
"""Tensors for which libllama never insists on importance."""


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor before and after."""

    name: str
    """Its name in the new file; after pruning, layers have other numbers than in the source."""
    dims: tuple[int, ...]
    """Elements per dimension, the contiguous one first; four of them."""
    source: TensorType
    target: TensorType

    @property
    def n_elements(self) -> int:
        """Product of the dimensions."""
        a, b, c, d = self.dims
        return a * b * c * d

    @property
    def before(self) -> int:
        """Bytes in the source."""
        return self.n_elements // self.source.block * self.source.size

    @property
    def after(self) -> int:
        """Bytes in the new file."""
        return self.n_elements // self.target.block * self.target.size

    @property
    def changes(self) -> bool:
        """Whether it is converted, rather than copied."""
        return self.source is not self.target


@dataclass(frozen=True, slots=True)
class Fallback:
    """Tensors whose rows are no whole number of blocks of the wanted type, and got another one."""

    columns: int
    wanted: str
    target: str
    n_tensors: int


class PlanReader:
    """Collects the plan from the lines that libllama logs in a dry run."""

    def __init__(self) -> None:
        self.tensors: list[PlannedTensor] = []
        self._fallbacks: Counter[tuple[int, str, str]] = Counter()

    def __call__(self, line: str) -> None:
        """Take a line."""
        if match := _LINE.match(line):
            source = _type(match["source"])
            target = _type(match["target"]) if match["target"] else source
            dims = tuple(int(n) for n in match["dims"].split(","))
            self.tensors.append(PlannedTensor(match["name"], dims, source, target))
        elif match := _FALLBACK.match(line):
            self._fallbacks[int(match["columns"]), match["wanted"], match["target"]] += 1

    @property
    def fallbacks(self) -> list[Fallback]:
        """Replaced types, the most frequent first."""
        return [Fallback(*key, n) for key, n in self._fallbacks.most_common()]


class StepReader:
    """Counts finished tensors from the lines that libllama logs while it quantizes.

    The line of a tensor is ended when it is done, unless a remark about it breaks the line before.
    """

    def __init__(self) -> None:
        self.done = 0
        self._current = 0

    def __call__(self, line: str) -> bool:
        """Take a line; whether another tensor is done."""
        if match := _STEP.match(line):
            self._current = int(match["no"])
        elif not line.startswith("converting to"):
            return False
        before, self.done = self.done, self._current if "size =" in line else self._current - 1
        return self.done > before


def _type(name: str) -> TensorType:
    found = _BY_NAME.get(name.upper())
    if found is None:
        raise NativeError(f"libllama plans the tensor type {name}, which Minka does not know; update Minka")
    return found


@dataclass(frozen=True, slots=True)
class Limits:
    """What decides whether a plan can be carried out."""

    allow_requantize: bool
    importance: Mapping[str, int]
    """Values of the importance matrix, by the tensor's name in the source. Empty without one."""
    layers: Mapping[int, int]
    """Number in the source by number in the new file, of layers that moved."""
    strict_q2_k: bool
    """Whether Q2_K needs importance (in a Q2_K_S file)."""


def check(plan: Sequence[PlannedTensor], limits: Limits) -> None:
    """Refuse what libllama would refuse half-way, or die of.

    Raises:
        UsageError: an option asks for what a tensor does not allow.
        ModelError: the importance matrix does not cover what has to be covered.
    """
    strict = VERY_LOW | {"Q2_K"} if limits.strict_q2_k else VERY_LOW
    for tensor in plan:
        if tensor.changes:
            _check_shape(tensor)
            if not limits.allow_requantize and tensor.source.block > 1:
                raise UsageError(
                    f"{tensor.name} is quantized already ({tensor.source.name}), and quantizing it again loses more "
                    "than quantizing the original; start from an F16 or F32 file, or give --allow-requantize"
                )
            _check_importance(tensor, limits, strict)


def _check_shape(tensor: PlannedTensor) -> None:
    if tensor.dims[0] % tensor.target.block:
        raise UsageError(
            f"{tensor.name} has rows of {tensor.dims[0]} values, which {tensor.target.name} cannot divide into blocks "
            f"of {tensor.target.block}; choose another type for it"
        )
    if tensor.dims[3] > 1:
        raise UsageError(f"{tensor.name} has four dimensions, and such a tensor cannot be converted; use COPY")


def _check_importance(tensor: PlannedTensor, limits: Limits, strict: Set[str]) -> None:
    needs = NEEDS_IMPORTANCE if tensor.name in _LENIENT else strict
    wanted = tensor.dims[0] * tensor.dims[2]
    have = limits.importance.get(source_name(tensor.name, limits.layers))
    if tensor.target.name in needs and have is None:
        where = "the importance matrix has nothing for it" if limits.importance else "give one with --imatrix"
        raise ModelError(f"{tensor.name} cannot be {tensor.target.name} without an importance matrix: {where}")
    if have not in (None, wanted) and (tensor.target.name in needs or tensor.name not in EMBEDDINGS):
        raise ModelError(
            f"the importance matrix has {have} values for {tensor.name}, which needs {wanted}: it is of another model"
        )


_LAYER = re.compile(r"blk\.([0-9]{1,9})\.")


def layer_of(name: str) -> int | None:
    """Number of the layer in a tensor's name, None outside of the layers."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def source_name(name: str, layers: Mapping[int, int]) -> str:
    """A tensor's name in the source, given the layers that moved."""
    match = _LAYER.search(name)
    if match is None or int(match[1]) not in layers:
        return name
    return f"{name[: match.start(1)]}{layers[int(match[1])]}{name[match.end(1) :]}"


def moved_layers(n_layers: int, pruned: Set[int]) -> dict[int, int]:
    """For each layer that gets another number by pruning: its number in the source, by the new one."""
    kept = [layer for layer in range(n_layers) if layer not in pruned]
    return {new: old for new, old in enumerate(kept) if new != old}
