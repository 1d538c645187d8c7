"""Small GGUF files for the tests: sound ones by the `gguf` package, broken or exotic ones byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFEndian, GGUFValueType, GGUFWriter
from gguf.quants import quantize

TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "c", "é", "long token with spaces"]
QUANTS = (
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q5_1,
    GGMLQuantizationType.BF16,
)


def noise(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def write_model(
    path: Path,
    *,
    n_layer: int = 2,
    alignment: int | None = None,
    big: bool = False,
    template: str | None = "{{ x }}",
    seed: int = 0,
) -> Path:
    """A file that looks like a model: metadata of every type, a vocabulary, and tensors of eight types."""
    writer = GGUFWriter(path, "llama", endianess=GGUFEndian.BIG if big else GGUFEndian.LITTLE)
    if alignment:
        writer.add_custom_alignment(alignment)
    _add_keys(writer)
    if template is not None:
        writer.add_chat_template(template)
    writer.add_tensor("token_embd.weight", noise(8, 64, seed=seed).astype(np.float16))
    for i in range(n_layer):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", noise(33, seed=seed + i))
        for j, kind in enumerate(QUANTS if not big else ()):
            data = quantize(noise(4, 64, seed=seed + i + j), kind)
            writer.add_tensor(f"blk.{i}.ffn_{kind.name.lower()}.weight", data, raw_dtype=kind)
    writer.add_tensor("positions", np.arange(5, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_keys(writer: GGUFWriter) -> None:
    writer.add_name('Tiny "model" <b>&')
    writer.add_uint32("llama.block_count", 2)
    writer.add_uint32("llama.context_length", 128)
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0, 0.5, -1.25, 0.0, 0.0, 0.0, 0.0, 1e-3])
    writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 1])
    writer.add_bos_token_id(1)
    writer.add_bool("tokenizer.ggml.add_bos_token", val=True)
    writer.add_key_value("x.u8", 200, GGUFValueType.UINT8)
    writer.add_key_value("x.i8", -5, GGUFValueType.INT8)
    writer.add_key_value("x.u16", 60000, GGUFValueType.UINT16)
    writer.add_key_value("x.i16", -3000, GGUFValueType.INT16)
    writer.add_key_value("x.i32", -(10**9), GGUFValueType.INT32)
    writer.add_key_value("x.f32", 0.1, GGUFValueType.FLOAT32)
    writer.add_key_value("x.u64", 2**63 + 1, GGUFValueType.UINT64)
    writer.add_key_value("x.i64", -(2**62), GGUFValueType.INT64)
    writer.add_key_value("x.f64", 0.1, GGUFValueType.FLOAT64)
    writer.add_array("x.bools", [True, False, True])
    writer.add_key_value("x.longs", [1, 2**40], GGUFValueType.ARRAY, GGUFValueType.INT64)


def string(raw: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "Q", len(raw)) + raw


def u32(key: str, value: int) -> bytes:
    return string(key.encode()) + struct.pack("<II", 4, value)


def text(key: str, value: str) -> bytes:
    return string(key.encode()) + struct.pack("<I", 8) + string(value.encode())


@dataclass(frozen=True, slots=True)
class Raw:
    """A tensor as it is to be written, right or wrong."""

    name: str
    dims: tuple[int, ...]
    type_id: int
    data: bytes
    offset: int | None = None
    """Announced offset; None for the right one."""


def write_raw(
    path: Path,
    tensors: Sequence[Raw] = (),
    fields: Sequence[bytes] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    n_tensors: int | None = None,
    n_fields: int | None = None,
) -> Path:
    """A file with exactly these records; counts that are given are announced instead of the right ones."""
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(fields) if n_fields is None else n_fields,
    )
    out = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(fields)
    at, data = 0, b""
    for tensor in tensors:
        offset = at if tensor.offset is None else tensor.offset
        out += string(tensor.name.encode())
        out += struct.pack(f"<I{len(tensor.dims)}QIQ", len(tensor.dims), *tensor.dims, tensor.type_id, offset)
        data += tensor.data + b"\0" * (-len(tensor.data) % alignment)
        at = len(data)
    path.write_bytes(out + b"\0" * (-len(out) % alignment) + data)
    return path
