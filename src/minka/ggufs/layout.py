"""The tables of the GGUF format: value types of metadata and the block layout of every tensor type.

One row per tensor type says how many elements a block has, how many bytes it takes, where its floating-point fields
are (they must be finite) and which words change with the byte order. Knows no file. Sources: ggml/include/gguf.h,
ggml/include/ggml.h and ggml/src/ggml-common.h of llama.cpp; the PyPI package `gguf` lacks the newest rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"GGUF"
VERSION = 3
"""The version that is written; 2 differs from it in nothing but the allowance for big-endian files."""
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
MAX_DIMS = 4
MAX_NAME = 64
"""Bytes of a tensor name with its closing NUL: libllama refuses a name of 64 bytes or more."""


class ValueType(IntEnum):
    """Type of a metadata value, by its number in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def code(self) -> str:
        """The letter of the `struct` module, or an empty string for strings and arrays."""
        return _CODES.get(self, "")

    @property
    def size(self) -> int:
        """Bytes of one value; 0 for strings and arrays, whose size varies."""
        return _SIZES.get(self, 0)

    @property
    def is_integer(self) -> bool:
        """Whether values are whole numbers (a bool is not)."""
        return self.code in "bBhHiIqQ" and self.code != ""


_CODES = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_SIZES = {type_: {"B": 1, "b": 1, "?": 1, "H": 2, "h": 2}.get(code, 4) for type_, code in _CODES.items()}
_SIZES |= {ValueType.UINT64: 8, ValueType.INT64: 8, ValueType.FLOAT64: 8}

VALUE_TYPE_NAMES: dict[str, ValueType] = {type_.name.lower(): type_ for type_ in ValueType} | {
    "u8": ValueType.UINT8,
    "i8": ValueType.INT8,
    "u16": ValueType.UINT16,
    "i16": ValueType.INT16,
    "u32": ValueType.UINT32,
    "i32": ValueType.INT32,
    "u64": ValueType.UINT64,
    "i64": ValueType.INT64,
    "f32": ValueType.FLOAT32,
    "f64": ValueType.FLOAT64,
    "str": ValueType.STRING,
}
"""Names a person may give a type: the long one of this enum and the short one of ggml."""


class Words(NamedTuple):
    """Equal words that lie side by side in a block."""

    offset: int
    """Bytes from the start of the block."""
    width: int
    """Bytes of one word: 2, 4 or 8."""
    n: int = 1


class FloatField(NamedTuple):
    """A floating-point field of a block. It is NaN or infinite when all bits of `exponent` are set."""

    offset: int
    width: int
    exponent: int


@dataclass(frozen=True, slots=True)
class TensorType:
    """How tensor data of one type is laid out; `block` and `size` are 0 when the type is unknown."""

    id: int
    name: str
    block: int
    """Elements of a block; a row is a whole number of blocks."""
    size: int
    """Bytes of a block."""
    words: tuple[Words, ...] | None
    """What a change of byte order reverses; None where llama.cpp has not settled how big-endian machines read it."""
    floats: tuple[FloatField, ...] = ()
    """Fields that must be finite: the scales of a quantised block, or the one element of a float type."""

    @property
    def known(self) -> bool:
        """Whether the size of data of this type can be told."""
        return self.size > 0


_F16 = 0x7C00
_F32 = 0x7F800000


def _plain(number: int, name: str, size: int, exponent: int = 0) -> TensorType:
    words = (Words(0, size),) if size > 1 else ()
    return TensorType(number, name, 1, size, words, (FloatField(0, size, exponent),) if exponent else ())


def _halves(number: int, name: str, block: int, size: int, *offsets: int, more: tuple[Words, ...] = ()) -> TensorType:
    """A block with half-precision scales at `offsets`, bytes elsewhere, and `more` words of other kinds."""
    words = tuple(Words(at, 2) for at in offsets) + more
    return TensorType(number, name, block, size, words, tuple(FloatField(at, 2, _F16) for at in offsets))


def _mixed(number: int, name: str, size: int, *, scale: bool = True) -> TensorType:
    """A 256-element block whose codes and grid indices have no settled big-endian form."""
    return TensorType(number, name, 256, size, None, (FloatField(0, 2, _F16),) if scale else ())


_TYPES = (
    _plain(0, "F32", 4, _F32),
    _plain(1, "F16", 2, _F16),
    _halves(2, "Q4_0", 32, 18, 0),
    _halves(3, "Q4_1", 32, 20, 0, 2),
    _halves(6, "Q5_0", 32, 22, 0, more=(Words(2, 4),)),
    _halves(7, "Q5_1", 32, 24, 0, 2, more=(Words(4, 4),)),
    _halves(8, "Q8_0", 32, 34, 0),
    _halves(9, "Q8_1", 32, 36, 0, 2),
    _halves(10, "Q2_K", 256, 84, 80, 82),
    _halves(11, "Q3_K", 256, 110, 108),
    _halves(12, "Q4_K", 256, 144, 0, 2),
    _halves(13, "Q5_K", 256, 176, 0, 2),
    _halves(14, "Q6_K", 256, 210, 208),
    TensorType(15, "Q8_K", 256, 292, (Words(0, 4), Words(260, 2, 16)), (FloatField(0, 4, _F32),)),
    _mixed(16, "IQ2_XXS", 66),
    _mixed(17, "IQ2_XS", 74),
    _mixed(18, "IQ3_XXS", 98),
    _mixed(19, "IQ1_S", 50),
    _halves(20, "IQ4_NL", 32, 18, 0),
    _mixed(21, "IQ3_S", 110),
    _mixed(22, "IQ2_S", 82),
    _halves(23, "IQ4_XS", 256, 136, 0, more=(Words(2, 2),)),
    _plain(24, "I8", 1),
    _plain(25, "I16", 2),
    _plain(26, "I32", 4),
    _plain(27, "I64", 8),
    _plain(28, "F64", 8, 0x7FF0000000000000),
    _mixed(29, "IQ1_M", 56, scale=False),
    _plain(30, "BF16", 2, 0x7F80),
    _halves(34, "TQ1_0", 256, 54, 52),
    _halves(35, "TQ2_0", 256, 66, 64),
    TensorType(39, "MXFP4", 32, 17, (), (FloatField(0, 1, 0xFF),)),
    TensorType(40, "NVFP4", 64, 36, ()),
    _halves(41, "Q1_0", 128, 18, 0),
    _halves(42, "Q2_0", 64, 18, 0),
)

TENSOR_TYPES: dict[int, TensorType] = {row.id: row for row in _TYPES}

REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Numbers that were types once; llama.cpp refuses them, and their layout is not known here."""


def tensor_type(number: int) -> TensorType:
    """The row of a type number; an unknown one gets a row with no size, so that a file can still be described."""
    known = TENSOR_TYPES.get(number)
    return known or TensorType(number, REMOVED_TYPES.get(number, f"type_{number}"), 0, 0, None)


def pad(n: int, alignment: int) -> int:
    """`n` rounded up to a multiple of `alignment` (a power of two)."""
    return (n + alignment - 1) & ~(alignment - 1)
