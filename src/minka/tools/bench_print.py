"""The outputs of `bench`, in llama-bench's formats: Markdown, CSV, JSON, JSON lines, SQL.

Each printer makes text and knows neither files nor how the numbers came about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from minka.native.context_params import FLASH_ATTN
from minka.tools.bench_matrix import Matrix
from minka.tools.bench_run import Machine, Measured

FORMATS = ("csv", "json", "jsonl", "md", "sql")

Kind = Literal["text", "int", "bool", "float"]
FIELDS: Mapping[str, Kind] = {
    "build_commit": "text",
    "build_number": "int",
    "cpu_info": "text",
    "gpu_info": "text",
    "backends": "text",
    "model_filename": "text",
    "model_type": "text",
    "model_size": "int",
    "model_n_params": "int",
    "n_batch": "int",
    "n_ubatch": "int",
    "n_threads": "int",
    "cpu_mask": "text",
    "cpu_strict": "bool",
    "poll": "int",
    "type_k": "text",
    "type_v": "text",
    "n_gpu_layers": "int",
    "n_cpu_moe": "int",
    "split_mode": "text",
    "main_gpu": "int",
    "no_kv_offload": "bool",
    "flash_attn": "int",
    "devices": "text",
    "tensor_split": "text",
    "tensor_buft_overrides": "text",
    "load_mode": "text",
    "lazy_mode": "text",
    "embeddings": "bool",
    "no_op_offload": "int",
    "no_host": "bool",
    "repack": "bool",
    "fit_target": "int",
    "fit_min_ctx": "int",
    "n_prompt": "int",
    "n_gen": "int",
    "n_depth": "int",
    "test_time": "text",
    "avg_ns": "int",
    "stddev_ns": "int",
    "avg_ts": "float",
    "stddev_ts": "float",
}
"""Every field of a test, in order, with its kind."""

_SQL = {"text": "TEXT", "int": "INTEGER", "bool": "INTEGER", "float": "REAL"}
_MIB, _GIB = 1024.0**2, 1024.0**3

# Columns of the Markdown table that are there only if the parameter varies, in order.
_OPTIONAL = (
    "n_cpu_moe", "n_threads", "cpu_mask", "cpu_strict", "poll", "n_batch", "n_ubatch", "type_k", "type_v", "main_gpu",
    "split_mode", "no_kv_offload", "flash_attn", "devices", "tensor_split", "tensor_buft_overrides", "load_mode",
    "lazy_mode", "embeddings", "no_op_offload", "no_host", "repack", "fit_target", "fit_min_ctx",
)  # fmt: skip
_TITLES = {
    "n_gpu_layers": "ngl", "split_mode": "sm", "n_threads": "threads", "no_kv_offload": "nkvo", "flash_attn": "fa",
    "load_mode": "lm", "embeddings": "embd", "no_op_offload": "nopo", "no_host": "noh", "repack": "rpk",
    "devices": "dev", "tensor_split": "ts", "tensor_buft_overrides": "ot", "fit_target": "fitt", "fit_min_ctx": "fitc",
}  # fmt: skip
# Negative: aligned to the left.
_WIDTHS = {
    "model": -30, "size": 10, "params": 10, "n_gpu_layers": 3, "n_threads": 7, "n_batch": 7, "n_ubatch": 8,
    "type_k": 6, "type_v": 6, "split_mode": 6, "load_mode": 10, "flash_attn": 3, "devices": -12, "test": 15,
    "no_op_offload": 4, "no_host": 4, "repack": 3, "t/s": 20,
}  # fmt: skip


class Printer(Protocol):
    """Turns results into text, each part with its line ends."""

    def header(self, matrix: Matrix, machine: Machine) -> str:
        """What comes before all tests."""

    def test(self, result: Measured) -> str:
        """One test."""

    def footer(self, machine: Machine) -> str:
        """What comes after all tests."""


def printer(name: str) -> Printer:
    """The printer of a format."""
    makers: Mapping[str, Callable[[], Printer]] = {"csv": Csv, "json": Json, "jsonl": Jsonl, "md": Markdown, "sql": Sql}
    return makers[name]()


def values(result: Measured) -> dict[str, str]:
    """Every field of a test as text, without quotes."""
    load, context, machine = result.test.load, result.test.context, result.machine
    found = {
        "build_commit": machine.build,
        "build_number": 0,
        "cpu_info": machine.cpu_info,
        "gpu_info": machine.gpu_info,
        "backends": machine.backends,
        "model_filename": load.model,
        "model_type": result.model_type,
        "model_size": result.model_size,
        "model_n_params": result.model_n_params,
        "flash_attn": FLASH_ATTN[context.flash_attn],
        "devices": "auto" if load.devices is None else "/".join(load.devices) or "none",
        "tensor_split": _tensor_split(load.tensor_split),
        "tensor_buft_overrides": ";".join(f"{a}={b}" for a, b in load.tensor_buft_overrides) or "none",
        "n_prompt": result.test.n_prompt,
        "n_gen": result.test.n_gen,
        "test_time": result.test_time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": result.avg_ns,
        "stddev_ns": result.stddev_ns,
        "avg_ts": f"{result.avg_ts:f}",
        "stddev_ts": f"{result.stddev_ts:f}",
    }
    for name in FIELDS:
        if name not in found:
            found[name] = getattr(load if hasattr(load, name) else context, name)
    return {name: _text(found[name]) for name in FIELDS}


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _tensor_split(split: tuple[float, ...]) -> str:
    last = max((i for i, part in enumerate(split) if part > 0), default=0)
    return "/".join(f"{part:.2f}" for part in (split or (0.0,))[: last + 1])


def _json(name: str, value: str) -> str:
    match FIELDS[name]:
        case "text":
            return json.dumps(value, ensure_ascii=False)
        case "bool":
            return "false" if value == "0" else "true"
        case _:
            return value


def _samples(result: Measured) -> tuple[str, str]:
    return ", ".join(map(str, result.samples_ns)), ", ".join(f"{value:.6g}" for value in result.samples_ts)


class Csv:
    """A header of names, then all values in quotes."""

    def header(self, matrix: Matrix, machine: Machine) -> str:
        """The names."""
        return ",".join(FIELDS) + "\n"

    def test(self, result: Measured) -> str:
        """The values."""
        quoted = ('"' + value.replace('"', '""') + '"' for value in values(result).values())
        return ",".join(quoted) + "\n"

    def footer(self, machine: Machine) -> str:
        """Nothing."""
        return ""


class Json:
    """One array of objects."""

    def __init__(self) -> None:
        self._first = True

    def header(self, matrix: Matrix, machine: Machine) -> str:
        """Opens the array."""
        return "[\n"

    def test(self, result: Measured) -> str:
        """An object, with the comma after the one before."""
        lines = [f'    "{name}": {_json(name, value)},' for name, value in values(result).items()]
        ns, ts = _samples(result)
        lines += [f'    "samples_ns": [ {ns} ],', f'    "samples_ts": [ {ts} ]']
        comma = "" if self._first else ",\n"
        self._first = False
        return comma + "\n".join(["  {", *lines, "  }"])

    def footer(self, machine: Machine) -> str:
        """Closes the array."""
        return "\n]\n"


class Jsonl:
    """An object a line."""

    def header(self, matrix: Matrix, machine: Machine) -> str:
        """Nothing."""
        return ""

    def test(self, result: Measured) -> str:
        """The object."""
        fields = "".join(f'"{name}": {_json(name, value)}, ' for name, value in values(result).items())
        ns, ts = _samples(result)
        return f'{{{fields}"samples_ns": [ {ns} ],"samples_ts": [ {ts} ]}}\n'

    def footer(self, machine: Machine) -> str:
        """Nothing."""
        return ""


class Sql:
    """A table and its rows, as SQLite takes them."""

    def header(self, matrix: Matrix, machine: Machine) -> str:
        """The table."""
        columns = ",\n".join(f"  {name} {_SQL[kind]}" for name, kind in FIELDS.items())
        return f"CREATE TABLE IF NOT EXISTS llama_bench (\n{columns}\n);\n\n"

    def test(self, result: Measured) -> str:
        """A row."""
        quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values(result).values())
        return f"INSERT INTO llama_bench ({', '.join(FIELDS)}) VALUES ({quoted});\n"

    def footer(self, machine: Machine) -> str:
        """Nothing."""
        return ""


class Markdown:
    """A table with the columns that tell the tests apart."""

    def __init__(self) -> None:
        self._fields: list[str] = []

    def header(self, matrix: Matrix, machine: Machine) -> str:
        """Titles, and the line below them."""
        on_cpu = any(name in machine.backends for name in ("CPU", "BLAS", "ZenDNN"))
        shown = [name for name in _OPTIONAL if matrix.varies(name) or (name == "n_threads" and on_cpu)]
        fixed = ["model", "size", "params", "backend"] + ([] if on_cpu else ["n_gpu_layers"])
        self._fields = [*fixed, *shown, "test", "t/s"]
        titles = "".join(f" {_pad(_TITLES.get(name, name), _width(name))} |" for name in self._fields)
        rules = "".join(
            f" {'-' * (abs(_width(name)) - 1)}{':' if _width(name) > 0 else '-'} |" for name in self._fields
        )
        return f"|{titles}\n|{rules}\n"

    def test(self, result: Measured) -> str:
        """A row."""
        known = values(result) | {
            "model": result.model_type,
            "size": _size(result.model_size),
            "params": _params(result.model_n_params),
            "backend": result.machine.backends,
            "test": result.test.name,
            "t/s": f"{result.avg_ts:.2f} ± {result.stddev_ts:.2f}",
        }
        return "|" + "".join(f" {_pad(known[name], _width(name))} |" for name in self._fields) + "\n"

    def footer(self, machine: Machine) -> str:
        """What was measured."""
        return f"\nbuild: {machine.build} (0)\n"


def _width(name: str) -> int:
    width = _WIDTHS.get(name, 0)
    if width:
        return width
    width = max(len(name), 10)
    return -width if FIELDS.get(name, "text") == "text" else width


def _pad(text: str, width: int) -> str:
    return text.ljust(-width) if width < 0 else text.rjust(width)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _MIB:.2f} MiB" if n_bytes < _GIB else f"{n_bytes / _GIB:.2f} GiB"


def _params(n: int) -> str:
    return f"{n / 1e6:.2f} M" if n < 1e9 else f"{n / 1e9:.2f} B"
