"""The types a model can be quantized to, by the names and numbers of llama.cpp.

A file type names a mixture for a whole model; a tensor type is the layout of one tensor. Sources: the table in
tools/quantize/quantize.cpp, and ggml_quantize_chunk in ggml/src/ggml.c, which writes the tensor types.
"""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

from minka.errors import UsageError
from minka.ggufs.layout import TENSOR_TYPES, TensorType


class FileType(NamedTuple):
    """A row of the table: what `minka quantize IN OUT NAME` makes."""

    name: str
    number: int
    """llama_ftype, as in general.file_type."""
    doc: str


# Bits per weight are those of Llama 3.1 8B, as llama.cpp's quantize README measured them, or the type's own.
FILE_TYPES: tuple[FileType, ...] = (
    FileType("Q1_0", 40, "1.13 bits per weight, for models trained for it"),
    FileType("Q2_0", 41, "2.25 bits per weight, blocks of 64, for models trained for it"),
    FileType("Q4_0", 2, "4.64 bits per weight, older form"),
    FileType("Q4_1", 3, "5.11 bits per weight, older form"),
    FileType("MXFP4_MOE", 38, "MXFP4 for the experts, Q8_0 for the rest"),
    FileType("Q5_0", 8, "5.57 bits per weight, older form"),
    FileType("Q5_1", 9, "6.04 bits per weight, older form"),
    FileType("IQ2_XXS", 19, "2.38 bits per weight; needs an importance matrix"),
    FileType("IQ2_XS", 20, "2.59 bits per weight; needs an importance matrix"),
    FileType("IQ2_S", 28, "2.74 bits per weight; needs an importance matrix"),
    FileType("IQ2_M", 29, "2.93 bits per weight; needs an importance matrix"),
    FileType("IQ1_S", 24, "2.00 bits per weight; needs an importance matrix"),
    FileType("IQ1_M", 31, "2.15 bits per weight; needs an importance matrix"),
    FileType("TQ1_0", 36, "1.69 bits per weight, ternary, for models trained for it"),
    FileType("TQ2_0", 37, "2.06 bits per weight, ternary, for models trained for it"),
    FileType("Q2_K", 10, "3.16 bits per weight"),
    FileType("Q2_K_S", 21, "2.97 bits per weight; needs an importance matrix"),
    FileType("IQ3_XXS", 23, "3.25 bits per weight; needs an importance matrix"),
    FileType("IQ3_S", 26, "3.66 bits per weight"),
    FileType("IQ3_M", 27, "3.76 bits per weight, mixed"),
    FileType("Q3_K", 12, "the same as Q3_K_M"),
    FileType("IQ3_XS", 22, "3.50 bits per weight; needs an importance matrix"),
    FileType("Q3_K_S", 11, "3.64 bits per weight"),
    FileType("Q3_K_M", 12, "4.00 bits per weight"),
    FileType("Q3_K_L", 13, "4.30 bits per weight"),
    FileType("IQ4_NL", 25, "4.68 bits per weight, non-linear"),
    FileType("IQ4_XS", 30, "4.46 bits per weight, non-linear"),
    FileType("Q4_K", 15, "the same as Q4_K_M"),
    FileType("Q4_K_S", 14, "4.67 bits per weight"),
    FileType("Q4_K_M", 15, "4.89 bits per weight: the usual choice"),
    FileType("Q5_K", 17, "the same as Q5_K_M"),
    FileType("Q5_K_S", 16, "5.57 bits per weight"),
    FileType("Q5_K_M", 17, "5.70 bits per weight"),
    FileType("Q6_K", 18, "6.56 bits per weight"),
    FileType("Q8_0", 7, "8.50 bits per weight: hardly any loss"),
    FileType("F16", 1, "16 bits per weight, half precision"),
    FileType("BF16", 32, "16 bits per weight, the range of F32"),
    FileType("F32", 0, "32 bits per weight"),
    FileType("COPY", 0, "change no tensor: only metadata, layers and shards"),
)

_UNWRITABLE = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
WRITABLE: dict[str, TensorType] = {row.name: row for row in TENSOR_TYPES.values() if row.name not in _UNWRITABLE}
"""Tensor types that a tensor can be converted to, by name."""

NEEDS_IMPORTANCE = frozenset({"IQ2_XXS", "IQ2_XS", "IQ1_S"})
"""Tensor types that cannot be made without an importance matrix, for any tensor: ggml would abort the process."""
VERY_LOW = NEEDS_IMPORTANCE | {"IQ2_S", "IQ1_M", "IQ3_XXS"}
"""Tensor types for which libllama insists on one, but for embedding and output (with Q2_K_S, for Q2_K as well)."""


def file_type(words: str) -> FileType:
    """The row of a name, in any case, or of a number; an alias keeps its name.

    Raises:
        UsageError: there is no such type.
    """
    if (found := find_file_type(words)) is not None:
        return found
    near = difflib.get_close_matches(words.upper(), [row.name for row in FILE_TYPES], 1)
    hint = f"; did you mean {near[0]}?" if near else "; `minka quantize --help` lists them"
    raise UsageError(f"there is no type {words!r} to quantize to{hint}")


def find_file_type(words: str) -> FileType | None:
    """As `file_type`, or None."""
    for row in FILE_TYPES:
        if row.name == words.upper():
            return row
    number = int(words) if re.fullmatch("[0-9]{1,9}", words) else None
    return next((row for row in FILE_TYPES if row.number == number), None)


def tensor_type(words: str) -> TensorType:
    """The tensor type of a name, in any case.

    Raises:
        UsageError: there is no such type, or no tensor can be converted to it.
    """
    found = WRITABLE.get(words.upper())
    if found is None:
        raise UsageError(f"there is no tensor type {words!r} to convert to; known are {', '.join(sorted(WRITABLE))}")
    return found
