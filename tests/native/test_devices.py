from __future__ import annotations

import pytest

from minka.errors import NativeError, UsageError
from minka.native.devices import DeviceType, backends, buffer_types, cpu_function, devices
from minka.native.threadpool import MAX_THREADS, Pinning, Threadpool, parse_cpu_mask, parse_cpu_range, set_priority


def test_the_cpu_is_a_device_with_memory() -> None:
    (cpu,) = [device for device in devices() if device.type is DeviceType.CPU]
    assert cpu.name == "CPU"
    assert cpu.description
    assert 0 < cpu.free <= cpu.total
    assert "CPU" in backends()
    assert buffer_types()["CPU"]


def test_a_function_of_the_cpu_backend_is_found_by_name() -> None:
    assert cpu_function("ggml_threadpool_new")
    assert cpu_function("no_such_function") is None


def test_a_pool_can_be_made_and_closed_twice() -> None:
    pool = Threadpool(2, Pinning(frozenset({0}), poll=0))
    pool.close()
    pool.close()


@pytest.mark.parametrize("n_threads", [0, MAX_THREADS + 1])
def test_a_pool_of_no_or_too_many_threads_is_refused(n_threads: int) -> None:
    with pytest.raises(UsageError, match="1 to 512 threads"):
        Threadpool(n_threads, Pinning())


def test_without_the_function_there_is_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minka.native.threadpool.cpu_function", lambda name: None)
    with pytest.raises(NativeError, match="cannot make thread pools"):
        Threadpool(1, Pinning())


@pytest.mark.parametrize(
    ("text", "cpus"), [("0x0", set()), ("1", {0}), ("0xF0", {4, 5, 6, 7}), ("8" + "0" * 127, {511})]
)
def test_a_mask_is_hexadecimal(text: str, cpus: set[int]) -> None:
    assert parse_cpu_mask(text) == cpus


@pytest.mark.parametrize("text", ["", "0x", "xyz", "-1", "1" + "0" * 128])
def test_a_bad_mask_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="mask"):
        parse_cpu_mask(text)


@pytest.mark.parametrize(("text", "cpus"), [("0-2", {0, 1, 2}), ("-1", {0, 1}), ("510-", {510, 511}), ("3-2", set())])
def test_a_range_may_lack_an_end(text: str, cpus: set[int]) -> None:
    assert parse_cpu_range(text) == cpus


@pytest.mark.parametrize("text", ["", "3", "a-b", "0-512", "0-1-2"])
def test_a_bad_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="range"):
        parse_cpu_range(text)


def test_a_priority_is_one_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    set_calls: list[tuple[int, int, int]] = []
    monkeypatch.setattr("os.setpriority", lambda *arguments: set_calls.append(arguments))
    set_priority(0)
    assert not set_calls
    set_priority(2)
    assert set_calls[0][2] == -10
    with pytest.raises(UsageError, match="between -1 and 3"):
        set_priority(4)


def test_a_priority_that_the_system_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.setpriority", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        set_priority(3)
