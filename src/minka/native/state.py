"""Sequence states cut into ranges of positions and put together again, so that a cache can store and share stems.

libllama saves and restores whole sequences only. Its bytes are not a published format: what is read here was learned
from llama_kv_cache::state_write of llama.cpp, and `StateFormat.probe` proves it for the library, the model and the
context at hand before anything relies on it. Nothing here knows which tokens the positions hold, nor which model they
came from beyond the types and widths of its cache: whoever stores a block must store that too.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from minka.errors import NativeError
from minka.native.protocol import Decoded
from minka.types import Tokenizer

log = logging.getLogger("minka.native")

Bytes = bytes | bytearray | memoryview
"""A state or a stored block; contiguous."""

_PROBE_TOKENS: Final = 11
_MAX_EXT: Final = 64
"""The most extra bytes of a cell that the probe looks for. Today there are 0, or 12 (M-RoPE: x, y and the token)."""
_MAX_POS: Final = 2**31 - 1
_HEAD: Final = struct.Struct("=4siI")
"""Magic, sequence id, number of streams."""
_COUNT: Final = struct.Struct("=I")
_DATA_HEAD: Final = struct.Struct("=II")
"""Whether V is transposed, number of layers."""
ROW_HEAD: Final = struct.Struct("=iQ")
"""ggml_type and bytes of a row: of K, and of V with flash attention."""
TRANSPOSED_HEAD: Final = struct.Struct("=iII")
"""ggml_type, bytes of an element, elements of a row: of V without flash attention."""
_BLOCK_HEAD: Final = struct.Struct("=4s16sIII")
"""Magic, kind, start, n_tokens, number of planes; the planes' widths (uint32) and the data follow."""
_BLOCK_MAGIC: Final = b"MKV1"


class Stateful(Protocol):
    """What the probe needs of a context. `native.context.Context` is one; contracts as in `protocol.Backend`."""

    @property
    def n_ctx_seq(self) -> int:
        """Most positions of one sequence."""

    @property
    def n_batch(self) -> int:
        """Most tokens in one decode."""

    @property
    def n_seq_max(self) -> int:
        """Number of sequences."""

    @property
    def vocab(self) -> Tokenizer:
        """The model's vocabulary."""

    def add(self, seq: int, tokens: Sequence[int], pos: int, *, logits: int) -> int:
        """Append tokens to the batch."""

    def decode(self) -> Decoded:
        """Compute the batch."""

    def cut(self, seq: int, n: int) -> None:
        """Drop positions >= n."""

    def length(self, seq: int) -> int:
        """Positions that the sequence holds."""

    def save(self, seq: int) -> bytes:
        """llama_state_seq_get_data."""

    def restore(self, seq: int, state: bytes) -> bool:
        """llama_state_seq_set_data; False if libllama refused the state or had no room for it."""


@dataclass(frozen=True, slots=True)
class KvBlock:
    """K and V of all layers for the positions `start`..`start + n_tokens - 1`.

    It does not depend on the sequence, the stream, the cells or the layout of V it came from: a block cut in one
    context fits every other of the same model, LoRA, RoPE settings and KV types.
    """

    start: int
    n_tokens: int
    kind: bytes = field(repr=False)
    """16 bytes that are equal for blocks of caches with the same types and widths."""
    widths: tuple[int, ...] = field(repr=False)
    """Bytes that a token has in each plane."""
    data: bytes = field(repr=False)
    """Plane after plane (extra cell data if any, K of each layer, V of each layer), each `n_tokens` rows."""

    def __post_init__(self) -> None:
        if self.start < 0 or self.n_tokens < 1 or len(self.data) != self.n_tokens * sum(self.widths):
            raise NativeError(
                f"a block of {self.n_tokens} positions from {self.start} cannot have {len(self.data)} bytes "
                f"at {sum(self.widths)} a position"
            )

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.start + self.n_tokens

    @property
    def n_bytes(self) -> int:
        """Size of the data."""
        return len(self.data)

    def slice(self, n: int) -> KvBlock:
        """Its first `n` positions, 1 <= n <= n_tokens, as a copy (so that the rest can be freed)."""
        if not 1 <= n <= self.n_tokens:
            raise NativeError(f"a block of {self.n_tokens} positions has no first {n}")
        if n == self.n_tokens:
            return self
        view, offset, rows = memoryview(self.data), 0, []
        for width in self.widths:
            rows.append(view[offset : offset + n * width])
            offset += self.n_tokens * width
        return KvBlock(self.start, n, self.kind, self.widths, b"".join(rows))

    def to_bytes(self) -> bytes:
        """The block as one string of bytes in this machine's byte order, for `from_bytes`."""
        head = _BLOCK_HEAD.pack(_BLOCK_MAGIC, self.kind, self.start, self.n_tokens, len(self.widths))
        return b"".join((head, struct.pack(f"={len(self.widths)}I", *self.widths), self.data))

    @classmethod
    def from_bytes(cls, raw: Bytes) -> KvBlock:
        """Read what `to_bytes` wrote, with a copy of the data. Raises NativeError if it is anything else.

        Lengths are checked; a change inside the data goes unseen, as there is no checksum.
        """
        view = memoryview(raw).cast("B")
        if len(view) < _BLOCK_HEAD.size:
            raise NativeError(f"{len(view)} bytes are too few for a stored block; delete it")
        magic, kind, start, n_tokens, n_planes = _BLOCK_HEAD.unpack_from(view)
        if magic != _BLOCK_MAGIC:
            raise NativeError("a stored block was written by another version or machine; delete it")
        data_start = _BLOCK_HEAD.size + 4 * n_planes
        if len(view) < data_start:
            raise NativeError("a stored block ends within its header; delete it")
        widths = struct.unpack_from(f"={n_planes}I", view, _BLOCK_HEAD.size)
        return cls(start, n_tokens, kind, widths, bytes(view[data_start:]))


@dataclass(frozen=True, slots=True)
class Plane:
    """K or V of one layer in a state: `head`, then `width` bytes for each cell."""

    head: bytes
    type: int
    """Its ggml_type."""
    width: int
    element: int = 0
    """0 if it has a row for each cell; bytes of an element if it is transposed (elements x cells)."""

    def take(self, view: memoryview, offset: int, n_cells: int, cells: slice | NDArray[np.intp]) -> Bytes:
        """Rows of the given cells; the plane's data begin at `offset`."""
        if self.element:
            table = np.ndarray((self.width // self.element, n_cells), f"u{self.element}", view, offset)
            return table[:, cells].T.tobytes()
        if isinstance(cells, slice):
            return view[offset + cells.start * self.width : offset + cells.stop * self.width]
        return np.ndarray((n_cells, self.width), np.uint8, view, offset)[cells].tobytes()

    def lay(self, rows: Sequence[memoryview], counts: Sequence[int]) -> Sequence[Bytes]:
        """Rows of consecutive blocks, `counts` cells each, as a state has them."""
        if not self.element:
            return rows
        table = np.empty((self.width // self.element, sum(counts)), f"u{self.element}")
        column = 0
        for part, n in zip(rows, counts, strict=True):
            table[:, column : column + n] = np.ndarray((n, table.shape[0]), table.dtype, part).T
            column += n
        return [table.data]


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of a state whose lengths and heads were checked."""

    view: memoryview
    offsets: list[int]
    """Where the data of each plane begin."""
    meta: NDArray[np.int32]
    """A row for each cell: position, number of sequences, extra data, sequence."""
    pos: NDArray[np.int32]
    """Positions in ascending order."""
    order: NDArray[np.intp] | None
    """The cells in the order of `pos`; None if they lie so."""

    def find(self, start: int, end: int) -> slice | NDArray[np.intp]:
        """The cells of positions start..end-1, in this order. Raises NativeError for a hole or a double."""
        if not 0 <= start < end <= _MAX_POS:
            raise NativeError(f"there is no block from position {start} to {end}")
        first, last = (int(i) for i in np.searchsorted(self.pos, (start, end)))
        if last - first != end - start or not np.array_equal(self.pos[first:last], np.arange(start, end)):
            raise NativeError(f"the saved sequence does not hold each position from {start} to {end - 1} exactly once")
        if self.order is None:
            return slice(first, last)
        cells = self.order[first:last]
        return slice(int(cells[0]), int(cells[-1]) + 1) if bool((np.diff(cells) == 1).all()) else cells


@dataclass(frozen=True)
class StateFormat:
    """The layout of one context's sequence states. Made by `probe`, once for each context."""

    magic: bytes
    n_streams: int
    """1 if all sequences share one pool of cells, else the number of pools."""
    n_ext: int
    """Extra bytes of a cell, a multiple of 4."""
    n_layers: int
    transposed: bool
    """V is stored by element instead of by cell (flash attention is off)."""
    planes: tuple[Plane, ...]
    """K of each layer, then V of each layer; no V where the model has none (MLA)."""

    @classmethod
    def probe(cls, context: Stateful) -> StateFormat | None:
        """Learn the format from an idle, empty context, and prove it there; leaves the context empty.

        None if the model's memory is no plain attention cache (sliding windows, recurrent state, an indexer ...), or
        if what was cut and joined is not to the byte what libllama saves. Costs one decode of at most 11 tokens, and
        nothing where the answer is None at first sight. Raises NativeError if the context is in use.
        """
        if any(context.length(seq) for seq in range(context.n_seq_max)):
            raise NativeError("the format of states can be probed in an empty context only")
        try:
            return _prove(context)
        except NativeError as error:
            log.info("states of this model are stored whole, not in blocks: %s", error)
            return None
        finally:
            context.cut(0, 0)
            context.cut(context.n_seq_max - 1, 0)

    @cached_property
    def kind(self) -> bytes:
        """See `KvBlock.kind`. Whether V is transposed does not count: blocks hold rows."""
        types = [number for plane in self.planes for number in (plane.type, plane.width)]
        numbers = (self.n_ext, self.n_layers, *types)
        return hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=16).digest()

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """See `KvBlock.widths`; their sum is the size of a block for each of its positions."""
        return ((self.n_ext,) if self.n_ext else ()) + tuple(plane.width for plane in self.planes)

    @cached_property
    def _before(self) -> tuple[int, ...]:
        """Bytes a token has in a block before each of `planes`."""
        return tuple(accumulate((plane.width for plane in self.planes), initial=self.n_ext))[:-1]

    def cut(self, state: Bytes, ranges: Sequence[tuple[int, int]]) -> list[KvBlock]:
        """Copy positions start..end-1 out of the state of a sequence, for each (start, end); they may overlap.

        Raises NativeError if the state has another format, or does not hold every position of a range exactly once
        (the tokens of an image share positions).
        """
        cells = self._read(memoryview(state).cast("B"))
        return [self._block(cells, start, end) for start, end in ranges]

    def join(self, blocks: Sequence[KvBlock]) -> bytes:
        """A state for llama_state_seq_set_data that holds the positions of all blocks, which must be consecutive.

        It restores into any sequence. Raises NativeError for a gap, or for a block from another kind of cache.
        """
        if not blocks or any(one.end != other.start for one, other in pairwise(blocks)):
            raise NativeError("only blocks that follow one another can be joined into a state")
        if any(block.kind != self.kind or block.widths != self.widths for block in blocks):
            raise NativeError("a block from another kind of cache (model, KV types) cannot be joined into this state")
        if blocks[-1].end > _MAX_POS:
            raise NativeError(f"position {blocks[-1].end} is more than libllama can count")
        counts = [block.n_tokens for block in blocks]
        views = [memoryview(block.data) for block in blocks]
        parts: list[Bytes] = [
            _HEAD.pack(self.magic, 0, self.n_streams),
            _COUNT.pack(sum(counts)),
            self._meta(blocks[0].start, counts, views),
            _DATA_HEAD.pack(self.transposed, self.n_layers),
        ]
        for plane, before in zip(self.planes, self._before, strict=True):
            after = before + plane.width
            rows = [view[before * n : after * n] for view, n in zip(views, counts, strict=True)]
            parts.append(plane.head)
            parts.extend(plane.lay(rows, counts))
        parts.append(bytes(_COUNT.size * (self.n_streams - 1)))
        return b"".join(parts)

    def count(self, state: bytes) -> int:
        """Cells of a state. Raises NativeError if it is not one of this format."""
        return len(self._read(memoryview(state)).pos)

    def _meta(self, start: int, counts: Sequence[int], views: Sequence[memoryview]) -> bytes:
        n_cells = sum(counts)
        meta = np.zeros((n_cells, 3 + self.n_ext // 4), np.int32)
        meta[:, 0] = np.arange(start, start + n_cells)
        meta[:, 1] = 1
        if self.n_ext:
            extra = b"".join([view[: self.n_ext * n] for view, n in zip(views, counts, strict=True)])
            meta[:, 2:-1] = np.frombuffer(extra, np.int32).reshape(n_cells, -1)
        return meta.tobytes()

    def _block(self, cells: _Cells, start: int, end: int) -> KvBlock:
        chosen, n_cells = cells.find(start, end), len(cells.meta)
        parts: list[Bytes] = [cells.meta[chosen, 2:-1].tobytes()]
        for plane, offset in zip(self.planes, cells.offsets, strict=True):
            parts.append(plane.take(cells.view, offset, n_cells, chosen))
        return KvBlock(start, end - start, self.kind, self.widths, b"".join(parts))

    def _read(self, view: memoryview) -> _Cells:
        """Check a state from end to end, but for the tensors' data. Nothing is read before the length allows it."""
        if len(view) < _HEAD.size + _COUNT.size * self.n_streams:
            raise _malformed(f"it ends after {len(view)} bytes")
        magic, seq, n_streams = _HEAD.unpack_from(view)
        if (magic, n_streams) != (self.magic, self.n_streams):
            raise _malformed("it begins in another way")
        # A sequence lives in one stream; the count of any other is 0 and nothing follows it.
        counts = np.ndarray(self.n_streams, np.uint32, view, _HEAD.size)
        stream = int(np.argmax(counts != 0))
        n_cells = int(counts[stream])
        meta_at = _HEAD.size + _COUNT.size * (stream + 1)
        n_columns = 3 + self.n_ext // 4
        data_at = meta_at + n_cells * n_columns * 4
        offsets, end = self._offsets(data_at + _DATA_HEAD.size, n_cells)
        if not n_cells:
            offsets, end = [], meta_at
        tail = _COUNT.size * (self.n_streams - 1 - stream)
        if end + tail != len(view) or any(view[end:]):
            raise _malformed(f"{n_cells} cells need {end + tail} bytes, and it has {len(view)}")
        meta = np.ndarray((n_cells, n_columns), np.int32, view, meta_at)
        if n_cells and not self._heads_fit(view, data_at, offsets):
            raise _malformed("its layers have other types or widths")
        if not (meta[:, 1] == 1).all() or not (meta[:, -1] == seq).all():
            raise _malformed(f"it has cells of other sequences than {seq}")
        pos = meta[:, 0]
        order = None if bool((np.diff(pos) > 0).all()) else np.argsort(pos, kind="stable")
        return _Cells(view, offsets, meta, pos if order is None else pos[order], order)

    def _offsets(self, at: int, n_cells: int) -> tuple[list[int], int]:
        """Where the data of each plane begin if the first plane begins at `at`, and where the last ends."""
        offsets = []
        for plane in self.planes:
            offsets.append(at + len(plane.head))
            at = offsets[-1] + n_cells * plane.width
        return offsets, at

    def _heads_fit(self, view: memoryview, data_at: int, offsets: Sequence[int]) -> bool:
        if view[data_at : data_at + _DATA_HEAD.size] != _DATA_HEAD.pack(self.transposed, self.n_layers):
            return False
        planes = zip(self.planes, offsets, strict=True)
        return all(view[offset - len(plane.head) : offset] == plane.head for plane, offset in planes)


class _Reader:
    """Takes fields off the front of a state. Raises NativeError where it ends."""

    def __init__(self, state: bytes) -> None:
        self._state = state
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._state) - self.at

    def skip(self, n: int) -> bytes:
        if n > self.left:
            raise _malformed(f"it ends after {len(self._state)} bytes")
        self.at += n
        return self._state[self.at - n : self.at]

    def take(self, fields: struct.Struct) -> tuple[int, ...]:
        return fields.unpack(self.skip(fields.size))

    def plane(self, n_cells: int, *, transposed: bool) -> Plane:
        """The next plane, without its data."""
        head = self._state[self.at : self.at + ROW_HEAD.size]
        if transposed:
            number, element, n_elements = self.take(TRANSPOSED_HEAD)
            if element not in (1, 2, 4, 8):
                raise _malformed(f"an element of V has {element} bytes")
            plane = Plane(head, number, element * n_elements, element)
        else:
            number, width = self.take(ROW_HEAD)
            plane = Plane(head, number, width)
        self.skip(n_cells * plane.width)
        return plane


def _learn(state: bytes, n_cells: int) -> StateFormat:
    """The format of a state of sequence 0 that holds positions 0..n_cells-1 and was saved from an empty context."""
    reader = _Reader(state)
    magic = state[:4]
    _magic, _seq, n_streams = reader.take(_HEAD)
    if reader.take(_COUNT)[0] != n_cells:
        raise _malformed(f"it does not count the {n_cells} cells that were computed")
    n_ext = _learn_ext(state[reader.at :], n_cells)
    reader.skip(n_cells * (12 + n_ext))
    transposed, n_layers = reader.take(_DATA_HEAD)
    planes = [reader.plane(n_cells, transposed=False) for _ in range(n_layers)]
    tail = _COUNT.size * (n_streams - 1)
    if reader.left > tail:
        planes += [reader.plane(n_cells, transposed=bool(transposed)) for _ in range(n_layers)]
    if reader.left != tail or not planes:
        raise _malformed(f"its {len(state)} bytes are not the K and V of {n_layers} layers")
    return StateFormat(magic, n_streams, n_ext, n_layers, bool(transposed), tuple(planes))


def _learn_ext(cells: bytes, n_cells: int) -> int:
    for n_ext in range(0, _MAX_EXT + 1, 4):
        if len(cells) < n_cells * (12 + n_ext):
            break
        meta = np.ndarray((n_cells, 3 + n_ext // 4), np.int32, cells)
        if np.array_equal(meta[:, 0], np.arange(n_cells)) and (meta[:, 1] == 1).all() and not meta[:, -1].any():
            return n_ext
    raise _malformed("its cells are not the positions that were computed")


def _prove(context: Stateful) -> StateFormat:
    """Learn the format from random tokens in sequence 0, and compare with what the last sequence makes of it."""
    n = min(_PROBE_TOKENS, context.n_ctx_seq)
    if n < _PROBE_TOKENS // 2:
        raise _malformed(f"a sequence of {n} positions is too short to tell its format")
    if not _is_empty_pool(context.save(0)):
        # Without a decode, which would cost time, and a model without any memory the process.
        raise _malformed("the model has no plain attention cache")
    tokens = np.random.default_rng(0).integers(0, context.vocab.n_tokens, n).tolist()
    for start in range(0, n, context.n_batch):
        context.add(0, tokens[start : start + context.n_batch], start, logits=0)
        if context.decode() is not Decoded.OK:
            raise _malformed("there was no room to compute one")
    if context.length(0) != n:
        raise _malformed("the model keeps none")
    state = context.save(0)
    found = _learn(state, n)
    blocks = found.cut(state, [(0, 2), (2, 3), (3, n)])
    if found.join(blocks) != state:
        raise _malformed("it cannot be put together again")
    for part in (blocks, [*blocks[:2], blocks[2].slice(1)]):
        _prove_restore(context, found, part)
    return found


def _is_empty_pool(state: bytes) -> bool:
    if len(state) < _HEAD.size:
        return False
    _magic, _seq, n_streams = _HEAD.unpack_from(state)
    pools = state[_HEAD.size :]
    return n_streams > 0 and len(pools) == _COUNT.size * n_streams and not any(pools)


def _prove_restore(context: Stateful, found: StateFormat, blocks: Sequence[KvBlock]) -> None:
    seq, end, state = context.n_seq_max - 1, blocks[-1].end, found.join(blocks)
    if not context.restore(seq, state) or context.length(seq) != end:
        raise _malformed("libllama does not take it back")
    if found.join(found.cut(context.save(seq), [(0, end)])) != state:
        raise _malformed("libllama makes something else of it")


def _malformed(reason: str) -> NativeError:
    return NativeError(f"the state of a sequence cannot be cut into blocks: {reason}")
