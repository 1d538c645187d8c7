from __future__ import annotations

from argparse import Namespace

import pytest

from minka.commands.arguments import Parser, add_parameters
from minka.commands.placement import LORA, device_list, hardware
from minka.errors import UsageError
from minka.native.devices import Device, DeviceType
from minka.native.placement import DENSE_FFN, EXPERTS, KvOverride, parse_metadata
from minka.native.threadpool import Pinning
from minka.params import HardwareParams, LoraParams
from minka.tools.scoring_context import Hardware


def parse(*words: str) -> Namespace:
    parser = Parser(prog="minka tool")
    add_parameters(parser, HardwareParams, LoraParams, omit=LORA)
    return parser.parse_args(list(words))


def placed(*words: str, **env: str) -> Hardware:
    return hardware(parse(*words), env)


def test_without_flags_all_is_libllamas_choice() -> None:
    found = placed()
    assert found.placement is not None
    assert (found.placement.devices, found.placement.overrides, found.placement.lazy_mode) == (None, (), "auto")
    assert found.pinning is None
    assert found.batch_pinning is None


def test_tensors_are_placed_by_pattern_and_by_layer() -> None:
    found = placed("-ot", "a=CPU,b=CPU", "-ot", "c=CPU", "-cmoe", "-ncmoe", "2", "--n-cpu-ffn", "1")
    assert found.placement is not None
    assert found.placement.overrides == (
        ("a", "CPU"), ("b", "CPU"), ("c", "CPU"), (EXPERTS, "CPU"),
        (rf"blk\.0{EXPERTS}", "CPU"), (rf"blk\.1{EXPERTS}", "CPU"), (rf"blk\.0{DENSE_FFN}", "CPU"),
    )  # fmt: skip


def test_the_environment_stands_in_for_flags() -> None:
    env = {"LLAMA_ARG_N_CPU_MOE": "1", "LLAMA_ARG_LAZY_MODE": "on", "LLAMA_ARG_DEVICE": "none"}
    found = hardware(parse("-lzm", "off"), env).placement
    assert found is not None
    assert (found.devices, len(found.overrides), found.lazy_mode) == ((), 1, "off")


def test_threads_are_pinned() -> None:
    found = placed("-C", "0x3", "-Cr", "4-5", "--cpu-strict", "1", "--poll", "0", "--prio-batch", "0")
    assert found.pinning == Pinning(frozenset({0, 1, 4, 5}), strict=True, poll=0)
    assert found.batch_pinning == Pinning()


def test_threads_of_prompts_are_the_same_unless_something_is_said_of_them() -> None:
    assert placed("-C", "1").batch_pinning is None
    assert placed("--prio", "0", "--poll", "50").pinning is None
    found = placed("-Crb", "0-1", "--cpu-strict-batch", "1", "--poll-batch", "100")
    assert (found.pinning, found.batch_pinning) == (None, Pinning(frozenset({0, 1}), strict=True, poll=100))


def test_adapters_may_have_a_scale() -> None:
    found = placed("--lora", 'a.gguf,"b,c.gguf"', "--lora-scaled", "d.gguf:0.5,C:/e.gguf:-1", "--lora", "f.gguf")
    names = [(str(adapter.path), adapter.scale) for adapter in found.adapters]
    assert names == [("a.gguf", 1), ("b,c.gguf", 1), ("d.gguf", 0.5), ("C:/e.gguf", -1), ("f.gguf", 1)]


def test_metadata_has_four_types() -> None:
    found = placed("--override-kv", "a=int:-4,b=float:.5", "--override-kv", '"c=str:x=y,z",d=bool:true').placement
    assert found is not None
    assert found.metadata == (
        KvOverride("a", -4),
        KvOverride("b", 0.5),
        KvOverride("c", "x=y,z"),
        KvOverride("d", value=True),
    )


@pytest.mark.parametrize("text", ["", "a", "a=4", "a=int:x", "a=bool:yes", "a=list:1", "=int:1", "a=str:" + 128 * "x"])
def test_other_metadata_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="KEY=TYPE:VALUE"):
        parse_metadata(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-dev", "CUDA9"), "no device"),
        (("-ot", "a"), "puts no tensor anywhere"),
        (("-ot", "a=CUDA9"), "no buffer type"),
        (("-ncmoe", "x"), "-ncmoe must be an integer, but got 'x'"),
        (("-ncmoe", "-1"), "-ncmoe must be between 0 and 4096"),
        (("-lzm", "maybe"), "-lzm must be one of on, auto, off"),
        (("--numa", "maybe"), "--numa must be one of distribute, isolate, numactl"),
        (("--poll", "101"), "--poll must be between 0 and 100"),
        (("--poll-batch", "-1"), "--poll-batch must be between 0 and 100"),
        (("--cpu-strict", "2"), "--cpu-strict must be between 0 and 1"),
        (("--prio", "4"), "--prio must be between -1 and 3"),
        (("-C", "zz"), "no CPU mask"),
        (("-Cr", "3"), "no range of processors"),
        (("-Cb", "x"), "no CPU mask"),
        (("--override-kv", "a=4"), "KEY=TYPE:VALUE"),
        (("--lora-scaled", "a.gguf"), "must be FILE:SCALE"),
        (("--lora-scaled", "a.gguf:x"), "must be a number, but got 'x'"),
    ],
)
def test_bad_values_are_one_sentence(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        placed(*words)


def test_the_list_of_devices_leaves_the_cpu_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (Device("CPU", "a processor", DeviceType.CPU, 5, 5), Device("GPU0", "a card", DeviceType.GPU, 2**30, 2**31))
    monkeypatch.setattr("minka.native.devices.devices", lambda: found)
    assert device_list() == "Available devices:\n  GPU0: a card (2048 MiB, 1024 MiB free)"
    monkeypatch.setattr("minka.native.devices.devices", lambda: found[:1])
    assert device_list() == "Available devices:\n  (none)"
