from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from minka.errors import NotSupportedError, RequestError
from minka.protocols.body import decode_lora, decode_options, jobs
from minka.protocols.lora import LoraFiles, adapters_object, decode_load, decode_scales, decode_unload
from minka.types import Adapter
from tests.protocols.values import made_served

KNOWN = (
    Adapter(0, "a.gguf", 1.0, "story", "Write: "),
    Adapter(2, "b.gguf", 0.5),
    Adapter(3, "c.gguf", 0.0),
)
SERVED = made_served(adapters=KNOWN)


# -- in requests


def test_a_request_without_the_field_has_the_servers_factors() -> None:
    assert decode_lora(None, KNOWN) == ((0, 1.0), (2, 0.5))
    (job,) = jobs([[1]], decode_options({}, SERVED), "id")
    assert job.lora == ((0, 1.0), (2, 0.5))


def test_a_request_with_the_field_has_these_and_no_others() -> None:
    assert decode_lora([], KNOWN) == ()
    assert decode_lora([{"id": 3, "scale": 0.25}], KNOWN) == ((3, 0.25),)
    assert decode_lora([{"id": 2, "scale": -1}, {"id": 0}], KNOWN) == ((0, 1.0), (2, -1.0))
    assert decode_lora([{"id": 0, "scale": 0}, {"id": 3, "scale": 0.0}], KNOWN) == ()


def test_jobs_of_other_adapters_or_factors_share_nothing() -> None:
    names = {
        jobs([[1]], decode_options({"lora": lora, "cache_salt": salt}, SERVED), "id")[0].namespace
        for lora in ([], [{"id": 0}], [{"id": 0, "scale": 0.5}], [{"id": 0}, {"id": 2}], [{"id": 2}])
        for salt in ("", "x")
    }
    assert len(names) == 10
    assert jobs([[1]], decode_options({"lora": [], "cache_salt": "x"}, SERVED), "id")[0].namespace == "x"


# -- the list


def test_the_list_is_llama_servers() -> None:
    first, *_ = adapters_object(SERVED)
    assert first == {"id": 0, "path": "a.gguf", "scale": 1.0, "task_name": "story", "prompt_prefix": "Write: "}


def test_factors_that_are_left_out_are_0() -> None:
    assert [a.scale for a in decode_scales(b'[{"id": 3, "scale": 0.75}]', KNOWN)] == [0.0, 0.0, 0.75]
    assert [a.scale for a in decode_scales(b"[]", KNOWN)] == [0.0, 0.0, 0.0]
    assert decode_scales(b'[{"id":0,"scale":2}]', KNOWN)[0] == replace(KNOWN[0], scale=2.0)


@pytest.mark.parametrize(
    "raw", [b"{}", b"null", b"3", b"", b"[1]", b'[{"id": 9}]', b'[{"id": 0, "scale": null}]', b"["]
)
def test_a_bad_list_of_factors_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestError):
        decode_scales(raw, KNOWN)


@pytest.mark.parametrize(
    ("body", "param"), [({}, "path"), ({"path": 3}, "path"), ({"path": "a", "scale": "1"}, "scale")]
)
def test_a_bad_order_to_load_is_refused(body: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_load(body)
    assert caught.value.param == param


def test_orders_are_read() -> None:
    assert decode_load({"path": "a.gguf"}) == ("a.gguf", 1.0)
    assert decode_load({"path": "a.gguf", "scale": 0}) == ("a.gguf", 0.0)
    assert decode_unload({"id": 3}) == 3
    for bad in ({}, {"id": "3"}, {"id": True}):
        with pytest.raises(RequestError):
            decode_unload(bad)


# -- which files


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "adapters"
    made.mkdir()
    (made / "inside.gguf").touch()
    (made / "sub").mkdir()
    (made / "sub" / "deep.gguf").touch()
    (tmp_path / "outside.gguf").touch()
    (made / "link.gguf").symlink_to(tmp_path / "outside.gguf")
    return made


def test_a_file_of_the_directory_may_be_loaded(directory: Path) -> None:
    assert LoraFiles((), directory).find("inside.gguf") == (directory / "inside.gguf").resolve()


def test_a_file_of_the_command_line_may_be_loaded_again() -> None:
    files = LoraFiles((Path("some/a.gguf"),))
    assert files.find("some/a.gguf") == Path("some/a.gguf")
    for other in ("a.gguf", "./some/a.gguf", "some/b.gguf"):
        with pytest.raises(RequestError):
            files.find(other)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../outside.gguf",
        "sub/deep.gguf",
        "sub",
        "link.gguf",
        "nothing.gguf",
        "inside.gguf\0",
        "a" * 5000,
    ],
)
def test_nothing_else_may(directory: Path, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        LoraFiles((), directory).find(name)
    assert caught.value.param == "path"
    with pytest.raises(RequestError):
        LoraFiles((), directory).find(os.fspath(directory / "inside.gguf"))


def test_without_a_directory_and_files_there_is_no_loading() -> None:
    with pytest.raises(NotSupportedError, match="--lora-dir"):
        LoraFiles().find("a.gguf")
