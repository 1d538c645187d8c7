"""A whole state of one context for another that lays out the same cache in another way.

The values lie by element instead of by cell where flash attention is off; a state names the number of its context's
pools. What it holds is the same, and slot files should not care. Knows no context and no file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from minka.errors import NativeError
from minka.native.state import ROW_HEAD, TRANSPOSED_HEAD, Plane, StateFormat

_STREAMS: Final = struct.Struct("=8xI")
"""The number of pools in the head of a state."""
_MAX_STREAMS: Final = 4096
_ELEMENT: Final = {0: 4, 1: 2, 30: 2}
"""Bytes of an element of the ggml_types that can be stored by element: f32, f16, bf16."""


def adopt(learned: StateFormat, state: bytes) -> bytes:
    """The state in the format `learned`; as it is if it has that already, or none that is known."""
    for known in (learned, *_twins(learned, state)):
        with suppress(NativeError):
            n_cells = known.count(state)
            return state if known is learned or not n_cells else learned.join(known.cut(state, [(0, n_cells)]))
    return state


def portable(learned: StateFormat, state: bytes) -> bytes:
    """The state as a context with flash attention has it, such as llama-server's; as it is where that is not known."""
    rows = next((twin for twin in _twins(learned, state) if not twin.transposed), None)
    with suppress(NativeError):
        if learned.transposed and rows is not None and (n_cells := learned.count(state)):
            return rows.join(learned.cut(state, [(0, n_cells)]))
    return state


def _twins(learned: StateFormat, state: bytes) -> Iterator[StateFormat]:
    """What formats the same sequence may have in other contexts of the same model and types."""
    n_streams = _STREAMS.unpack_from(state)[0] if len(state) >= _STREAMS.size else 0
    if not 0 < n_streams <= _MAX_STREAMS:
        return
    yield replace(learned, n_streams=n_streams)
    keys, values = learned.planes[: learned.n_layers], learned.planes[learned.n_layers :]
    turned = [plane for plane in map(_turned, values) if plane is not None]
    if len(turned) == len(values):
        yield replace(learned, n_streams=n_streams, transposed=not learned.transposed, planes=(*keys, *turned))


def _turned(plane: Plane) -> Plane | None:
    """The plane stored the other way, None if the elements of its type cannot be told apart."""
    if plane.element:
        return Plane(ROW_HEAD.pack(plane.type, plane.width), plane.type, plane.width)
    if (element := _ELEMENT.get(plane.type, 0)) == 0:
        return None
    head = TRANSPOSED_HEAD.pack(plane.type, element, plane.width // element)
    return Plane(head, plane.type, plane.width, element)
