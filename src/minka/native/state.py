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
"""The most bytes a cell may have between its position and its sequence id. Today: 0, or 12 (M-RoPE: x, y, token)."""
_HEAD: Final = struct.Struct("=4siI")
"""Magic, sequence id, number of streams."""
_COUNT: Final = struct.Struct("=I")
_DATA_HEAD: Final = struct.Struct("=II")
"""Whether V is transposed, number of layers."""
_ROW_HEAD: Final = struct.Struct("=iQ")
"""ggml_type and bytes of a row: of K, and of V with flash attention."""
_TRANSPOSED_HEAD: Final = struct.Struct("=iII")
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
class _Plane:
    """K or V of one layer in a state: `head`, then `width` bytes for each cell."""

    head: bytes
    type: int
    width: int
    element: int = 0
    """Bytes of an element if the plane is transposed (elements x cells), 0 if it has a row for each cell."""


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of a state, whose lengths and headers were checked."""

    view: memoryview
    offsets: list[int]
    """Where the data of each plane begins."""
    meta: NDArray[np.int32]
    """(n_cells, 3 + extra): position, number of sequences, extra data, sequence."""
    pos: NDArray[np.int32]
    """Positions in ascending order."""
    order: NDArray[np.intp] | None
    """Cells in the order of `pos`; None if they lie so."""

    def find(self, start: int, end: int) -> slice | NDArray[np.intp]:
        """The cells of positions start..end-1, in this order."""
        first, last = (int(i) for i in np.searchsorted(self.pos, (start, end)))
        if not 0 <= start < end or not np.array_equal(self.pos[first:last], np.arange(start, end)):
            raise NativeError(f"the state of a sequence does not hold each position from {start} to {end - 1} once")
        if self.order is None:
            return slice(first, last)
        cells = self.order[first:last]
        return slice(int(cells[0]), int(cells[-1]) + 1) if bool((np.diff(cells) == 1).all()) else cells


@dataclass(frozen=True)
class StateFormat:
    """The layout of one context's sequence states. Made by `probe`, once for each context."""

    magic: bytes
    n_streams: int
    """1 if all sequences share one pool of cells, else a pool for each sequence."""
    n_ext: int
    """Extra bytes of a cell, a multiple of 4."""
    n_layers: int
    planes: tuple[_Plane, ...]
    """K of each layer, then V of each layer; no V where the model has none (MLA)."""

    @classmethod
    def probe(cls, context: Stateful) -> StateFormat | None:
        """Learn the format from an idle, empty context, and prove it there; leaves the context empty.

        None if the model's memory is no plain attention cache (sliding windows, recurrent state, an indexer ...), or
        if what was cut and joined is not to the byte what libllama saves. Costs one decode of 11 tokens. Raises
        NativeError if the context is in use.
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
        """See `KvBlock.kind`. Whether V is transposed does not matter: blocks hold rows."""
        types = [number for plane in self.planes for number in (plane.type, plane.width)]
        numbers = (self.n_ext, self.n_layers, *types)
        return hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=16).digest()

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """See `KvBlock.widths`."""
        ext = (self.n_ext,) if self.n_ext else ()
        return ext + tuple(plane.width for plane in self.planes)

    @cached_property
    def n_token_bytes(self) -> int:
        """Bytes of a block for each of its positions."""
        return sum(self.widths)

    @cached_property
    def _data_head(self) -> bytes:
        return _DATA_HEAD.pack(any(plane.element for plane in self.planes), self.n_layers)

    def cut(self, state: Bytes, ranges: Sequence[tuple[int, int]]) -> list[KvBlock]:
        """Copy the positions start..end-1 of each range out of the state of a sequence. Ranges may overlap.

        Raises NativeError if the state has another format or does not hold every position of a range exactly once (as
        after an image, whose tokens share a position).
        """
        cells = self._read(memoryview(state).cast("B"))
        return [self._block(cells, start, end) for start, end in ranges]

    def join(self, blocks: Sequence[KvBlock]) -> bytes:
        """A state for llama_state_seq_set_data that holds the positions of all blocks, each beginning where one ends.

        Raises NativeError if they do not follow one another or come from another kind of cache.
        """
        if not blocks or any(one.end != other.start for one, other in pairwise(blocks)):
            raise NativeError("only blocks that follow one another can be joined into a state")
        if any(block.kind != self.kind or block.widths != self.widths for block in blocks):
            raise NativeError("a block from another model or with other KV types cannot be joined into this one's state")
        start, n_cells = blocks[0].start, blocks[-1].end - blocks[0].start
        if blocks[-1].end > np.iinfo(np.int32).max:
            raise NativeError(f"position {blocks[-1].end} is more than libllama can count")
        tables = [[(memoryview(block.data), block.n_tokens) for block in blocks]]
        offsets = list(accumulate(self.widths, initial=0))
        parts: list[Bytes] = [
            _HEAD.pack(self.magic, 0, self.n_streams),
            _COUNT.pack(n_cells),
            self._meta(blocks, start, n_cells),
            self._data_head,
        ]
        del tables
        for plane, offset in zip(self.planes, offsets[-1 - len(self.planes) :], strict=False):
            parts.append(plane.head)
            parts += _rows_of(blocks, plane, offset, n_cells)
        parts.append(bytes(_COUNT.size * (self.n_streams - 1)))
        return b"".join(parts)
