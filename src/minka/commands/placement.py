"""Flags for where a measuring tool computes: devices, tensors by name, metadata, threads. Their names are llama.cpp's.

For commands that load a model without the engine. Values are checked when they are read, before a model is loaded.
"""

from __future__ import annotations

import argparse
import csv
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.arguments import TRUE_WORDS
from minka.errors import UsageError
from minka.params import Kind, SamplingParams, rows

if TYPE_CHECKING:
    from minka.native.placement import KvOverride, Placement
    from minka.native.raw import Adapter
    from minka.native.threadpool import Pinning
    from minka.tools.scoring_context import Hardware

_ENV = {
    "device": "LLAMA_ARG_DEVICE",
    "override_tensor": "LLAMA_ARG_OVERRIDE_TENSOR",
    "cpu_moe": "LLAMA_ARG_CPU_MOE",
    "n_cpu_moe": "LLAMA_ARG_N_CPU_MOE",
    "n_cpu_ffn": "LLAMA_ARG_N_CPU_FFN",
    "lazy_mode": "LLAMA_ARG_LAZY_MODE",
    "numa": "LLAMA_ARG_NUMA",
}
LAZY_MODES = ("on", "auto", "off")
NUMA_MODES = ("distribute", "isolate", "numactl")
_KV_LENGTH = 127
"""Bytes of a key or a text that libllama has room for."""
_READ_KV: Mapping[str, Callable[[str], int | float | bool | str]] = {
    "int": int,
    "float": float,
    "bool": lambda text: {"true": True, "false": False}[text],
    "str": str,
}


class ListDevices(argparse.Action):
    """Print the devices, and nothing else is done."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="list the devices and exit")

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: object, option_string: str | None = None
    ) -> None:
        """Print, and end as --help does."""
        print(device_list())
        parser.exit()


def device_list() -> str:
    """The devices other than the CPU, as llama.cpp lists them."""
    from minka.native.devices import DeviceType, devices

    mib = 1024 * 1024
    lines = [
        f"  {device.name}: {device.description} ({device.total // mib} MiB, {device.free // mib} MiB free)"
        for device in devices()
        if device.type is not DeviceType.CPU
    ]
    return "\n".join(["Available devices:", *(lines or ["  (none)"])])


def add_placement(parser: ArgumentParser) -> None:
    """Declare the flags; `hardware` reads them."""
    group = parser.add_argument_group("Where to compute")
    _add(group, "-dev", "--device", metavar="DEV1,DEV2", help="devices for the weights, none for only the CPU")
    group.add_argument("--list-devices", action=ListDevices)
    text = "put the tensors whose name fits a pattern into a buffer type; may be repeated"
    _add(group, "-ot", "--override-tensor", metavar="PATTERN=TYPE,...", action="append", help=text)
    _add(
        group, "-cmoe", "--cpu-moe", action="store_const", const="on", help="keep the experts of all layers on the CPU"
    )
    _add(group, "-ncmoe", "--n-cpu-moe", metavar="N", help="keep the experts of the first N layers there")
    text = "keep the dense feed-forward weights of the first N layers there"
    _add(group, "-ncffn", "--n-cpu-ffn", metavar="N", help=text)
    text = "read rows of marked tensors when they are needed (default: auto)"
    _add(group, "-lzm", "--lazy-mode", metavar="|".join(LAZY_MODES), help=text)
    text = "change metadata of the model; TYPE is int, float, bool or str; may be repeated"
    _add(group, "--override-kv", metavar="KEY=TYPE:VALUE,...", action="append", help=text)
    text = "LoRA adapters to compute with; may be repeated"
    _add(group, "--lora", metavar="FILE,...", action="append", help=text)
    text = "the same, each with a factor"
    _add(group, "--lora-scaled", metavar="FILE:SCALE,...", action="append", help=text)
    _add(group, "--numa", metavar="|".join(NUMA_MODES), help="how to spread over NUMA nodes")
    for short, long, what in (("", "", "threads"), ("b", "-batch", "prompt threads")):
        _add(group, f"-C{short}", f"--cpu-mask{long}", metavar="HEX", help=f"processors for the {what}, as a mask")
        _add(group, f"-Cr{short}", f"--cpu-range{long}", metavar="LO-HI", help=f"processors for the {what}")
        _add(group, f"--cpu-strict{long}", metavar="0|1", type=int, help="each thread on a processor of its own")
        _add(group, f"--prio{long}", metavar="-1..3", type=int, help=f"priority of the {what}")
        _add(group, f"--poll{long}", metavar="0..100", type=int, help=f"how much idle {what} spin (default: 50)")


def _add(group: argparse._ArgumentGroup, *flags: str, metavar: str | None = None, **options: object) -> None:
    if metavar is not None:
        options["metavar"] = metavar
    group.add_argument(*flags, default=None, **options)  # type: ignore[arg-type]


def ignore_sampling(parser: ArgumentParser) -> None:
    """Accept the sampling flags that all of llama.cpp's tools take, though nothing is sampled."""
    for row in rows(SamplingParams):
        flags = [*row.param.flags, *row.param.negated, *(flag for also in row.param.also for flag in also.flags)]
        if flags:
            parser.add_argument(
                *flags, dest=argparse.SUPPRESS, action=_Ignored, nargs=0 if row.type is Kind.BOOL else None
            )


class _Ignored(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, nargs: int | None) -> None:
        super().__init__(option_strings, dest, nargs=nargs, default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def __call__(self, *_: object) -> None:
        """Do nothing."""


def hardware(args: Namespace, env: Mapping[str, str] | None = None) -> Hardware:
    """What the flags and the environment say. Raises UsageError for a device or buffer type that does not exist.

    The priority and the use of NUMA nodes are changed at once: they are the process's.
    """
    from minka.native.placement import init_numa
    from minka.native.threadpool import set_priority
    from minka.tools.scoring_context import Hardware

    words = _words(args, os.environ if env is None else env)
    if mode := _one_of("--numa", words["numa"], NUMA_MODES):
        init_numa(mode)
    set_priority(args.prio or 0)
    placement = _placement(words, args.override_kv or ())
    return Hardware(placement, _pinning(args, ""), _pinning(args, "_batch"), tuple(_adapters(args)))


def _adapters(args: Namespace) -> Iterator[Adapter]:
    from minka.native.raw import Adapter

    for name in _names(args.lora or ()):
        yield Adapter(Path(name))
    for word in _names(args.lora_scaled or ()):
        name, colon, scale = word.rpartition(":")
        try:
            if not name or not colon:
                raise ValueError(word)
            yield Adapter(Path(name), float(scale))
        except ValueError:
            raise UsageError(f"--lora-scaled {word!r} must be FILE:SCALE, as in adapter.gguf:0.5") from None


def _names(texts: Sequence[str]) -> Iterator[str]:
    """What is between commas; a name with a comma in it is in double quotes."""
    return (name for row in csv.reader(texts) for name in row if name)


def _words(args: Namespace, env: Mapping[str, str]) -> dict[str, str]:
    """The text of each flag of _ENV: from the command line, else the environment, else empty."""
    words = {}
    for name, variable in _ENV.items():
        given = getattr(args, name)
        words[name] = env.get(variable, "") if given is None else ",".join(given) if isinstance(given, list) else given
    return words


def _placement(words: Mapping[str, str], metadata: Sequence[str]) -> Placement:
    from minka.native.placement import DENSE_FFN, EXPERTS, Placement, block_overrides, check_device, cpu_buffer_type

    overrides = parse_overrides(words["override_tensor"], ",") if words["override_tensor"] else []
    if words["cpu_moe"].lower() in TRUE_WORDS:
        overrides.append((EXPERTS, cpu_buffer_type()))
    overrides += block_overrides(_count("--n-cpu-moe", words["n_cpu_moe"]), EXPERTS)
    overrides += block_overrides(_count("--n-cpu-ffn", words["n_cpu_ffn"]), DENSE_FFN)
    names = [name for name in words["device"].split(",") if name]
    return Placement(
        devices=tuple(check_device(name) for name in names if names != ["none"]) if names else None,
        overrides=tuple(overrides),
        lazy_mode=_one_of("--lazy-mode", words["lazy_mode"], LAZY_MODES) or "auto",
        metadata=tuple(entry for text in metadata for entry in parse_metadata(text)),
    )


def _count(flag: str, text: str) -> int:
    if text and not text.isdecimal():
        raise UsageError(f"{flag} must be 0 or more, but got {text!r}")
    return int(text or 0)


def _one_of(flag: str, text: str, choices: Sequence[str]) -> str:
    if text and text not in choices:
        raise UsageError(f"{flag} must be one of {', '.join(choices)}, but got {text!r}")
    return text


def parse_overrides(text: str, separator: str) -> list[tuple[str, str]]:
    """Pairs of a tensor name pattern and a buffer type. Raises UsageError for one that does not exist."""
    from minka.native.placement import check_buffer_type

    pairs = []
    for word in text.split(separator):
        pattern, equals, name = word.partition("=")
        if not pattern or not equals:
            raise UsageError(f"{word!r} puts no tensor anywhere; give PATTERN=TYPE, as in exps=CPU")
        pairs.append((pattern, check_buffer_type(name)))
    return pairs


def parse_metadata(text: str) -> list[KvOverride]:
    """Overrides of metadata from KEY=TYPE:VALUE,... Raises UsageError."""
    from minka.native.placement import KvOverride

    entries = []
    for word in text.split(","):
        key, _, rest = word.partition("=")
        kind, colon, value = rest.partition(":")
        try:
            if not key or not colon or max(len(key.encode()), len(value.encode())) > _KV_LENGTH:
                raise ValueError(word)
            entries.append(KvOverride(key, _READ_KV[kind](value)))
        except (ValueError, KeyError):
            raise UsageError(
                f"{word!r} changes no metadata; give KEY=TYPE:VALUE with int, float, bool or str, as in a.b=int:4"
            ) from None
    return entries


def _pinning(args: Namespace, suffix: str) -> Pinning | None:
    """The thread pool that the flags ask for, None if no flag does."""
    from minka.native.threadpool import Pinning, parse_cpu_mask, parse_cpu_range

    mask, cpus, strict, prio, poll = (
        getattr(args, f"{name}{suffix}") for name in ("cpu_mask", "cpu_range", "cpu_strict", "prio", "poll")
    )
    if all(value is None for value in (mask, cpus, strict, prio, poll)):
        return None
    if poll is not None and not 0 <= poll <= 100:
        raise UsageError(f"--poll must be between 0 and 100, but got {poll}")
    chosen = (parse_cpu_mask(mask) if mask else frozenset()) | (parse_cpu_range(cpus) if cpus else frozenset())
    return Pinning(chosen, bool(strict), 50 if poll is None else poll, prio or 0)
