from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from minka.errors import ModelError
from minka.native.model import Model
from minka.params import ModelParams
from tests import tiny
from tests.native.conftest import ON_CPU
from tests.tiny_fixtures import TinyModels

Load = Callable[[str], Model]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("not-gguf", "invalid magic"),
        ("truncated", "not within the file bounds, model is corrupted or incomplete"),
        ("future-version", "version 99 but this software only supports"),
        ("lora", "key not found in model: llama.context_length"),
    ],
)
def test_a_file_that_is_no_model_is_refused_with_libllamas_reason(
    tiny_models: TinyModels, name: str, reason: str
) -> None:
    with pytest.raises(ModelError) as raised:
        Model.load(tiny_models(name), ON_CPU)
    message = str(raised.value)
    assert message.startswith(f"cannot load the model {tiny_models(name)}: ")
    assert reason in message
    assert "\n" not in message
    assert "gguf_init" not in message, "names of C functions tell a user nothing"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.gguf", tmp_path, Path("nul\0byte.gguf")):
        with pytest.raises(ModelError, match="there is no such file"):
            Model.load(path, ON_CPU)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    with pytest.raises(ModelError, match=r"empty\.gguf"):
        Model.load(path, ON_CPU)


@pytest.mark.parametrize("name", ["of a müller.gguf", os.fsdecode(b"of b\xff.gguf")])
def test_any_name_the_file_system_allows(tmp_path: Path, tiny_models: TinyModels, name: str) -> None:
    path = tmp_path / name
    try:
        path.write_bytes(tiny_models("llama").read_bytes())
    except OSError:
        pytest.skip("this file system does not allow such a name")
    Model.load(path, ON_CPU).close()


def test_after_a_failed_load_the_next_one_works(tiny_models: TinyModels) -> None:
    with pytest.raises(ModelError):
        Model.load(tiny_models("truncated"), ON_CPU)
    Model.load(tiny_models("llama"), ON_CPU).close()


def test_progress_goes_from_nothing_to_all(tiny_models: TinyModels) -> None:
    seen: list[float] = []
    Model.load(tiny_models("llama"), ON_CPU, seen.append).close()
    assert seen == sorted(seen)
    assert 0 <= seen[0] <= seen[-1] == 1.0


def test_a_loaded_model_tells_what_it_is(load: Load, tmp_path: Path) -> None:
    model = load("llama")
    assert model.n_ctx_train == 2048
    assert (model.n_embd, model.n_layer, model.n_head, model.n_head_kv) == (64, 2, 4, 2)
    assert model.description.startswith("llama")
    assert "F32" in model.ftype
    assert "F16" in load("llama-f16").ftype
    assert model.size == 4 * model.n_params > 0
    assert model.has_decoder
    assert (model.n_swa, model.has_state) == (0, False)


def test_what_kind_of_memory_a_model_has(load: Load) -> None:
    assert load("swa").n_swa == 32
    assert [load(name).has_state for name in ("recurrent", "hybrid", "swa")] == [True, True, False]


def test_metadata_as_text(load: Load) -> None:
    model = load("llama")
    assert model.meta("general.architecture") == "llama"
    assert model.meta("llama.context_length") == "2048"
    assert model.meta("no.such.key") is None


def test_the_chat_template_or_none(load: Load, tmp_path: Path) -> None:
    assert load("llama").chat_template() == tiny.CHATML
    assert load("llama").chat_template("tool_use") is None
    bare = Model.load(tiny.write_llama(tmp_path / "bare.gguf", chat_template=None), ON_CPU)
    assert bare.chat_template() is None
    bare.close()


def test_a_template_of_libllamas_own(load: Load) -> None:
    render = load("llama").apply_legacy_template
    text = render("chatml", [("user", "Grüße 🤖 " * 200), ("assistant", "")], add_assistant=True)
    assert text is not None
    assert text.startswith("<|im_start|>user\nGrüße 🤖 ")
    assert text.endswith("<|im_start|>assistant\n")
    assert render("chatml", [], add_assistant=False) == ""
    assert render("{% no such thing %}", [("user", "hi")], add_assistant=True) is None
    assert render("chatml", [("user", "\ud800")], add_assistant=False) == "<|im_start|>user\n?<|im_end|>\n"


def test_a_closed_model_says_so(tiny_models: TinyModels) -> None:
    model = Model.load(tiny_models("llama"), ON_CPU)
    model.close()
    model.close()
    with pytest.raises(ModelError, match="was closed"):
        model.meta("general.architecture")


def test_more_parts_than_devices_are_refused(tiny_models: TinyModels) -> None:
    with pytest.raises(ModelError, match="--tensor-split has 200 parts"):
        Model.load(tiny_models("llama"), ModelParams(n_gpu_layers=0, tensor_split=(1.0,) * 200))


@pytest.mark.parametrize("mode", ["none", "mmap"])
def test_load_modes_give_the_same_model(tiny_models: TinyModels, mode: str) -> None:
    model = Model.load(tiny_models("llama"), ModelParams(n_gpu_layers=0, load_mode=mode, check_tensors=True))
    assert model.n_params > 0
    model.close()


def test_an_exception_in_the_progress_stops_the_loading(tiny_models: TinyModels) -> None:
    """It may not pass through C, and must not be lost: it is how Ctrl-C stops a long load."""
    calls: list[float] = []

    def stop(share: float) -> None:
        calls.append(share)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Model.load(tiny_models("llama"), ModelParams(), stop)
    assert len(calls) == 1


def test_a_load_leaves_no_compute_threads_behind(demo_model: Path) -> None:
    """They would spin beside those of the thread that decodes, and take a tenth of its speed."""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("threads are counted in /proc, which only Linux has")
    code = f"""
        import os, time
        from pathlib import Path
        from minka.native.model import Model
        from minka.params import ModelParams
        count = lambda: len(os.listdir("/proc/self/task"))
        before = count()
        Model.load(Path({str(demo_model)!r}), ModelParams(n_gpu_layers=0))
        end = time.monotonic() + 10
        while count() > before and time.monotonic() < end:
            time.sleep(0.01)
        print(count() - before)
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0\n"
