"""The options of a quantization, as a person writes them and as values. Knows no file but a list of tensor types."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from minka.errors import UsageError
from minka.ggufs.layout import ALIGNMENT_KEY, DEFAULT_ALIGNMENT
from minka.native.quantize import MAX_TEXT
from minka.tools.quantize_types import tensor_type
from minka.tools.quantize_worker import Setting

MAX_BUFFER_MIB = 8192


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """How to quantize; the defaults are llama-quantize's. Names of tensor types are ggml's, in any case."""

    threads: int = 0
    """0 for one per core."""
    imatrix: str | Path | None = None
    """Importance matrix of either form. The name is stored in the new file, spelled as it is here."""
    include_weights: tuple[str, ...] = ()
    """Use the importance matrix only for tensors whose name has one of these in it."""
    exclude_weights: tuple[str, ...] = ()
    """Do not use it for tensors whose name has one of these in it. Not together with `include_weights`."""
    output_tensor_type: str | None = None
    token_embedding_type: str | None = None
    tensor_types: tuple[tuple[str, str], ...] = ()
    """(pattern, tensor type): the first regular expression found in a tensor's name decides its type."""
    pure: bool = False
    """One type for all tensors, instead of a mixture."""
    leave_output_tensor: bool = False
    allow_requantize: bool = False
    prune_layers: tuple[int, ...] = ()
    """Layers to leave out; the later ones move up."""
    keep_split: bool = False
    """Write as many shards as the source has. The output is then a prefix; a `.gguf` at its end is dropped."""
    override_kv: tuple[Setting, ...] = ()
    """(key, "int" | "float" | "bool" | "str", value): metadata to set; an int is stored as uint32, without its sign."""
    max_buffer_size: int = MAX_BUFFER_MIB
    """MiB of rows of a tensor in memory at a time."""
    dry_run: bool = False
    """Only plan: nothing is written."""


def parse_tensor_type(words: str) -> tuple[str, str]:
    """`NAME=TYPE`, the name in lower case, as llama-quantize has it.

    Raises:
        UsageError: another form, or an unknown type.
    """
    pattern, _, name = words.partition("=")
    if not pattern or not name:
        raise UsageError(f"{words!r} is not NAME=TYPE, such as attn_v=q8_0")
    return pattern.lower(), tensor_type(name).name


def read_tensor_types(path: Path) -> tuple[tuple[str, str], ...]:
    """A file of `NAME=TYPE`, with spaces or line ends between.

    Raises:
        UsageError: the file cannot be read, or has an entry of another form.
    """
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the tensor types in {path}: {error}") from error
    return tuple(parse_tensor_type(word) for word in words)


def parse_override(words: str) -> Setting:
    """`KEY=TYPE:VALUE` with the types int, float, bool and str.

    Raises:
        UsageError: another form, or a value that is not of the type.
    """
    key, _, rest = words.partition("=")
    kind, colon, value = rest.partition(":")
    if not key or not colon or kind not in ("int", "float", "bool", "str"):
        raise UsageError(f"{words!r} is not KEY=TYPE:VALUE with a type of int, float, bool or str")
    if kind == "str":
        return key, "str", value
    if kind == "bool" and value in ("true", "false"):
        return key, "bool", value == "true"
    try:
        if kind == "int" and -(2**63) <= int(value) < 2**63:
            return key, "int", int(value)
        if kind == "float":
            return key, "float", float(value)
    except ValueError:
        pass
    raise UsageError(f"{value!r} in {words!r} is no {kind}")


def check_options(options: QuantizeOptions) -> None:
    """Refuse options that no model could satisfy.

    Raises:
        UsageError: naming the option as the command line does.
    """
    if options.include_weights and options.exclude_weights:
        raise UsageError("--include-weights and --exclude-weights cannot be used together")
    if options.max_buffer_size < 1:
        raise UsageError(f"--max-buffer-size must be at least 1, but got {options.max_buffer_size}")
    if any(not key or len(key.encode()) > MAX_TEXT for key, _, _ in options.override_kv):
        raise UsageError(f"a key of --override-kv must have 1 to {MAX_TEXT} bytes")
    for key, kind, value in options.override_kv:
        if key == ALIGNMENT_KEY:
            raise UsageError(f"{key} cannot be overridden, because libllama lays tensors out for {DEFAULT_ALIGNMENT}")
        if kind == "str" and len(os.fsencode(str(value))) > MAX_TEXT:
            raise UsageError(f"the value of {key} has more than the {MAX_TEXT} bytes that libllama takes")
