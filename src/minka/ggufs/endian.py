"""Changes the byte order of a GGUF file: header, metadata and every multi-byte word of the tensor data.

Which words a block has is in the table of `layout`; types without a row there, and those whose big-endian form
llama.cpp has not settled (IQ1, IQ2 and IQ3), are refused before anything is written.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from minka.errors import ModelError
from minka.ggufs.atomic import replacing
from minka.ggufs.layout import TensorType, ValueType
from minka.ggufs.progress import Meter, Progress, silent
from minka.ggufs.read import CHUNK, ByteOrder, Field, GgufFile, Tensor, open_gguf
from minka.ggufs.write import (
    data_size,
    encode_header,
    encode_string,
    letter,
    placed,
    require_complete,
    write_tensor,
)

HOST_ORDER: ByteOrder = "little" if sys.byteorder == "little" else "big"


def swap_blocks(kind: TensorType, data: bytes) -> bytes:
    """The same blocks in the other byte order. `data` is a whole number of blocks of a type that has `words`.

    Raises:
        ModelError: the type cannot be converted.
    """
    if kind.words is None:
        raise ModelError(f"the byte order of {kind.name} data cannot be changed")
    if not kind.words:
        return data
    blocks: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8).reshape(-1, kind.size).copy()
    for words in kind.words:
        part = blocks[:, words.offset : words.offset + words.width * words.n]
        part[:] = part.reshape(len(blocks), words.n, words.width)[:, :, ::-1].reshape(part.shape)
    return blocks.tobytes()


def whole_blocks(kind: TensorType, size: int = CHUNK) -> int:
    """The largest number of bytes up to `size` that is a whole number of blocks."""
    return max(size // kind.size, 1) * kind.size


def refused_tensors(source: GgufFile) -> tuple[Tensor, ...]:
    """The tensors whose byte order cannot be changed."""
    return tuple(tensor for tensor in source.tensors if tensor.type.words is None)


def swapped_field(source: GgufFile, field: Field, order: ByteOrder) -> bytes:
    """A metadata record in the given byte order, its values unchanged to the bit."""
    prefix = letter(order)
    head = encode_string(field.raw_key, order) + struct.pack(prefix + "I", field.type)
    kind = field.type
    if field.element is not None:
        kind = field.element
        head += struct.pack(prefix + "IQ", field.element, field.count)
    raw = source.bytes_of(field.value_start, field.end)
    if kind is not ValueType.STRING:
        swap = order != source.order and kind.size > 1
        return head + (np.frombuffer(raw, f"u{kind.size}").byteswap().tobytes() if swap else raw)
    if field.element is None:
        return head + encode_string(raw[8:], order)
    return head + b"".join(encode_string(item, order) for item in source.strings(field))


def convert_endian(
    path: Path,
    order: ByteOrder,
    *,
    output: Path | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> bool:
    """Write the file in another byte order, to `output` or in the place of the file itself.

    Either way the new file is complete before it takes its place. With `dry_run` only the checks are made.

    Returns:
        False when the file has that order already, and nothing was done.

    Raises:
        ModelError: the file is damaged, or holds a type that cannot be converted.
        UsageError: `output` exists and `force` is not set.
        MinkaError: the output cannot be written.
    """
    with open_gguf(path) as source:
        if source.order == order:
            return False
        require_complete(source)
        _require_convertible(source)
        if dry_run:
            return True
        target = path if output is None else output
        with replacing(target, force=force or output is None, inputs=(path,)) as out:
            fields = [swapped_field(source, field, order) for field in source.fields]
            tensors = [placed(source, tensor) for tensor in source.tensors]
            out.write(encode_header(fields, tensors, source.alignment, order, source.version))
            meter = Meter(data_size(tensors), progress)
            for tensor in source.tensors:
                chunks = source.chunks(tensor, whole_blocks(tensor.type))
                write_tensor(out, (swap_blocks(tensor.type, chunk) for chunk in chunks), source.alignment, meter)
    return True


def _require_convertible(source: GgufFile) -> None:
    refused: Sequence[Tensor] = refused_tensors(source)
    if refused:
        more = f" (and {len(refused) - 1} more tensors)" if len(refused) > 1 else ""
        raise ModelError(f"cannot change the byte order of type {refused[0].type.name}: tensor {refused[0].name}{more}")
