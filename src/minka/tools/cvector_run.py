"""Makes control vectors: what tells pairs of texts apart, layer by layer, as a direction that can be added later.

The states that each layer gives to the next are collected for a positive and a negative text of the same length, token
by token; the direction is the first principal component of the differences, or their mean. Pairs, paddings and the file
are those of llama-cvector-generator (tools/cvector-generator of llama.cpp). Knows no command line and no terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from minka.errors import ModelError, UsageError
from minka.ggufs.atomic import destination, replacing
from minka.ggufs.layout import DEFAULT_ALIGNMENT, ValueType
from minka.ggufs.progress import Meter, silent
from minka.ggufs.split import canonical_dims
from minka.ggufs.write import NewValue, Placed, encode_field, encode_header, write_tensor
from minka.hub import locate
from minka.native.control_vector import ControlVector
from minka.native.model import Model
from minka.native.observer import ResultContext
from minka.native.raw import tokenize
from minka.native.threadpool import Threadpools
from minka.params import ContextParams, ModelParams
from minka.tools.scoring_context import Hardware
from minka.tools.tokenize_text import unescape

Floats = NDArray[np.float32]
Pairs = Sequence[tuple[bytes, bytes]]
"""A positive and a negative text each."""

ARCHITECTURE = "controlvector"
EPSILON = 1e-6
"""Differences of a token none of whose values is above this are left out."""
TOLERANCE = 1e-7
"""The power iteration ends once a step moves the vector by less."""
_LAYER = re.compile(r"l_out-(\d+)")
_F32 = 0


@dataclass(frozen=True, slots=True)
class CvectorOptions:
    """How a control vector is made, and where it is saved."""

    output: Path = Path("control_vector.gguf")
    method: Literal["pca", "mean"] = "pca"
    iterations: int = 1000
    """Most steps of the power iteration, a multiple of `batch`."""
    batch: int = 100
    """Steps between two looks at whether it has come to rest."""


@dataclass(frozen=True, slots=True)
class CvectorReport:
    """What was saved."""

    path: Path
    n_layers: int
    """Layers that have a direction: all but one."""
    n_rows: tuple[int, ...]
    """Differences that each direction was made of."""
    explained: tuple[float, ...]
    """The share (0..1) of the differences' squares that lies along each direction."""


class PairProgress(Protocol):
    """Called after each pair of texts, and once before the first."""

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` pairs are through."""


def read_prompts(path: Path) -> tuple[bytes, ...]:
    """One prompt a line, with escapes processed; empty lines are left out. Raises UsageError."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read the prompts {path}: {error.strerror or error}") from error
    return tuple(unescape(line) for line in lines if line)


def cvector(
    positive: Sequence[str | bytes],
    negative: Sequence[str | bytes],
    options: CvectorOptions | None = None,
    model: ModelParams | None = None,
    context: ContextParams | None = None,
    *,
    hardware: Hardware | None = None,
    progress: PairProgress = silent,
) -> CvectorReport:
    """Make the control vector that leads from the negative texts to the positive ones, and save it.

    Of `context`, threads and types count; its sizes follow from the longest text. An existing output is replaced.

    Raises:
        UsageError: the texts are no pairs, or an option is wrong.
        ModelError: the model cannot be used, or does not show what its layers compute.
    """
    options, params, hardware = options or CvectorOptions(), model or ModelParams(), hardware or Hardware()
    _check(options, len(positive), len(negative))
    pairs = [(_raw(a), _raw(b)) for a, b in zip(positive, negative, strict=True)]
    path = locate(params).path
    destination(options.output, [path])
    with closing(Model.load(path, params, placement=hardware.placement)) as loaded:
        if loaded.n_layer < 2:
            raise ModelError(f"{loaded.path} has one layer only: there is none that a direction could be added to")
        differences = _differences(loaded, context or ContextParams(), hardware, pairs, progress)
        hint = loaded.meta("general.architecture") or ""
    directions, explained = [], []
    for rows in differences:
        direction = _mean(rows) if options.method == "mean" else principal(rows, options.iterations, options.batch)
        directions.append(direction)
        explained.append(float(np.square(rows @ direction).sum() / np.square(rows).sum()))
    write(options.output, directions, hint)
    return CvectorReport(options.output, len(directions), tuple(len(rows) for rows in differences), tuple(explained))


def _raw(text: str | bytes) -> bytes:
    return text.encode("utf-8", "replace") if isinstance(text, str) else text


def _check(options: CvectorOptions, n_positive: int, n_negative: int) -> None:
    if n_positive != n_negative:
        raise UsageError(f"there are {n_positive} positive and {n_negative} negative prompts, which make no pairs")
    if not n_positive:
        raise UsageError("there is no pair of prompts")
    if options.batch < 1 or options.iterations < 1 or options.iterations % options.batch:
        raise UsageError(
            f"the iterations ({options.iterations}) must be a multiple of the batch ({options.batch}), and both over 0"
        )
    destination(options.output)


# -- states of layers


def _differences(
    model: Model, params: ContextParams, hardware: Hardware, pairs: Pairs, progress: PairProgress
) -> list[Floats]:
    """For each layer but the last, the differences of all tokens of all pairs, shape (n, n_embd)."""
    tokens = [_tokens(model, *pair) for pair in pairs]
    longest = max(len(positive) for positive, _ in tokens)
    sizes = replace(params, n_ctx=longest, n_batch=longest, n_ubatch=longest, parallel=1, kv_unified=False)
    found: list[list[Floats]] = [[] for _ in range(model.n_layer - 1)]
    progress(0, len(pairs))
    with hardware.threadpools(sizes) as threadpools, closing(_States(model, sizes, hardware, threadpools)) as states:
        for number, (positive, negative) in enumerate(tokens, 1):
            rows = states.of(positive)
            for layer, (a, b) in enumerate(zip(rows, states.of(negative), strict=True)):
                kept = _nonzero(a - b)
                if not len(kept):
                    raise UsageError(f"the prompts of pair {number} are the same to the model in layer {layer}")
                found[layer].append(kept)
            progress(number, len(pairs))
    return [np.concatenate(rows) for rows in found]


def _tokens(model: Model, *texts: bytes) -> tuple[list[int], ...]:
    """Tokens of texts, the shorter ones padded at the end to the length of the longest."""
    vocab = model.vocab
    tokenized = [[int(t) for t in tokenize(vocab, x, add_special=vocab.add_bos, parse_special=True)] for x in texts]
    blank = tokenize(vocab, b" ", add_special=False)
    padding = int(blank[-1]) if len(blank) else max(vocab.eos, 0)
    longest = max(1, *map(len, tokenized))
    return tuple(tokens + [padding] * (longest - len(tokens)) for tokens in tokenized)


def _nonzero(rows: Floats) -> Floats:
    """The rows that have a value above EPSILON (as upstream has it: not an absolute value)."""
    return rows[(rows > EPSILON).any(axis=1)]


class _States:
    """What the layers of a model compute for a text, each text in an empty context."""

    def __init__(self, model: Model, params: ContextParams, hardware: Hardware, threadpools: Threadpools) -> None:
        self._model = model
        self._seen: dict[int, Floats] = {}
        self._context = ResultContext(model, params, "l_out", self._see, threadpools)
        try:
            hardware.adapt(model, self._context)
        except BaseException:
            self.close()
            raise

    def _see(self, name: str, values: Floats) -> None:
        match = _LAYER.match(name)
        if match is not None:
            self._seen[int(match[1])] = values[0, 0].copy()

    def of(self, tokens: Sequence[int]) -> list[Floats]:
        """States behind each layer but the last, shape (n_tokens, n_embd). Raises ModelError if they do not show."""
        self._seen.clear()
        self._context.clear()
        self._context.add(0, tokens, 0, logits=1)
        self._context.decode()
        shape = (len(tokens), self._model.n_embd)
        rows = [self._seen.get(layer) for layer in range(self._model.n_layer - 1)]
        found = [states for states in rows if states is not None and states.shape == shape]
        if len(found) < len(rows):
            raise ModelError(f"{self._model.path} is of an architecture that does not show what its layers compute")
        return found

    def close(self) -> None:
        """Free the context."""
        self._context.close()


# -- directions


def principal(rows: Floats, iterations: int, batch: int) -> Floats:
    """The first principal component (not centred) of rows, by power iteration: a unit vector, on the side of the mean.

    llama-cvector-generator leaves the sign to chance; here the vector leads to the positive texts.
    """
    exact = rows.astype(np.float64)
    square = exact.T @ exact
    vector = _unit(np.random.default_rng(1).random((square.shape[0],)))
    for _ in range(iterations // batch):
        before = vector
        for _ in range(batch):
            before, vector = vector, _unit(square @ vector)
        if np.abs(vector - before).max() < TOLERANCE:
            break
    return (vector if exact.mean(axis=0) @ vector >= 0 else -vector).astype(np.float32)


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / float(np.sqrt(vector @ vector))


def _mean(rows: Floats) -> Floats:
    """The mean of rows as a unit vector."""
    mean = rows.astype(np.float64).mean(axis=0)
    if not mean.any():
        raise ModelError("the differences of a layer cancel out: their mean has no direction; use the method pca")
    return _unit(mean).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Described:
    """A direction in numbers: its length, and its cosine with that of the layer before, if there is one."""

    layer: int
    norm: float
    similarity: float | None


def describe(vector: ControlVector) -> tuple[Described, ...]:
    """The directions of a control vector, by layer."""
    found = []
    for layer, direction in sorted(vector.directions.items()):
        exact = direction.astype(np.float64)
        norm = float(np.sqrt(exact @ exact))
        before = vector.directions.get(layer - 1)
        similarity = None
        if before is not None and norm and before.any():
            similarity = float(_unit(before.astype(np.float64)) @ exact / norm)
        found.append(Described(layer, norm, similarity))
    return tuple(found)


# -- the file


def write(path: Path, directions: Sequence[Floats], model_hint: str) -> None:
    """Write directions for the layers 1, 2, ... as a GGUF file, in place only once it is whole. Raises MinkaError."""
    fields = [
        encode_field("general.architecture", NewValue(ValueType.STRING, ARCHITECTURE), "little"),
        encode_field(f"{ARCHITECTURE}.model_hint", NewValue(ValueType.STRING, model_hint), "little"),
        encode_field(f"{ARCHITECTURE}.layer_count", NewValue(ValueType.INT32, len(directions)), "little"),
    ]
    data = [direction.astype("<f4").tobytes() for direction in directions]
    placed = [
        Placed(f"direction.{layer}".encode(), canonical_dims((len(raw) // 4,)), _F32, len(raw))
        for layer, raw in enumerate(data, 1)
    ]
    meter = Meter(sum(map(len, data)), silent)
    with replacing(path, force=True) as out:
        out.write(encode_header(fields, placed, DEFAULT_ALIGNMENT, "little"))
        for raw in data:
            write_tensor(out, iter((raw,)), DEFAULT_ALIGNMENT, meter)
