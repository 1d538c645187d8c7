from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import minka
from minka import cli
from minka.commands.arguments import Parser
from minka.commands.command import Entry, discover, summary
from minka.errors import ModelError, UsageError
from tests.tiny_fixtures import TinyModels

FAKES = {
    "greet_all": '''"""Greet somebody.

What follows is for those who read on.
"""

from minka.commands.command import Command


def configure(parser):
    parser.add_argument("NAME")
    parser.add_argument("-n", "--times", type=int, default=1)


def run(args):
    for _ in range(args.times):
        print(f"hello {args.NAME}")
    return 3


COMMAND = Command("greet-all", configure, run)
''',
    "fail": '''"""Fail in several ways."""

from minka.commands.command import Command
from minka.errors import ModelError


def configure(parser):
    parser.add_argument("HOW")


def run(args):
    raise {"model": ModelError("x.gguf is truncated"), "interrupt": KeyboardInterrupt(), "bug": ZeroDivisionError()}[
        args.HOW
    ]


COMMAND = Command("fail", configure, run)
''',
    "broken": '''"""Cannot be imported."""

import no_such_module_anywhere

COMMAND = None
''',
    "helper": '''"""No command: it only helps the others."""

COMMANDS = 3
''',
}


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Entry, ...]]:
    """A package of commands in the place of the real one."""
    package = tmp_path / "fake_commands"
    package.mkdir()
    for name, source in FAKES.items():
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    found = discover(package, "fake_commands")
    monkeypatch.setattr(cli, "discover", lambda: found)
    yield found
    for name in [name for name in sys.modules if name.startswith("fake_commands")]:
        del sys.modules[name]


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


# -- finding commands


def test_commands_are_found_without_being_imported(fakes: tuple[Entry, ...]) -> None:
    assert [(entry.name, entry.summary) for entry in fakes] == [
        ("broken", "Cannot be imported."),
        ("fail", "Fail in several ways."),
        ("greet-all", "Greet somebody."),
    ]
    assert not any(name.startswith("fake_commands") for name in sys.modules)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""One.\n\nTwo."""\nthis is no python (', "One."),
        ('"""\nOne.\n"""\n', "One."),
        ("'One.'\nx = 1\n", "One."),
        ('x = 1\n"""Not a docstring."""\n', ""),
        ("", ""),
    ],
)
def test_summary(source: str, expected: str) -> None:
    assert summary(source) == expected


def test_a_module_whose_command_is_none(fakes: tuple[Entry, ...], tmp_path: Path) -> None:
    (tmp_path / "fake_commands" / "broken.py").write_text("COMMAND = 3\n")
    with pytest.raises(TypeError, match=r"fake_commands\.broken\.COMMAND is no Command"):
        fakes[0].load()


@pytest.mark.parametrize("entry", discover(), ids=lambda entry: entry.name)
def test_every_command_has_a_summary_and_configures_itself(entry: Entry) -> None:
    command = entry.load()
    assert command.name == entry.name
    assert entry.summary
    assert len(entry.summary) < 100
    parser = Parser(prog=f"minka {entry.name}")
    command.configure(parser)
    assert parser.format_help().startswith(f"usage: minka {entry.name}")


# -- running them


def test_a_command_gets_its_arguments_and_gives_the_exit_code(
    fakes: tuple[Entry, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["greet-all", "world", "-n", "2"]) == 3
    assert capsys.readouterr().out == "hello world\nhello world\n"


def test_other_commands_are_not_imported(fakes: tuple[Entry, ...]) -> None:
    assert cli.main(["greet-all", "world"]) == 3
    assert "fake_commands.greet_all" in sys.modules
    assert "fake_commands.fail" not in sys.modules


@pytest.mark.parametrize("words", [["greet-all", "--help"], ["help", "greet-all"]])
def test_the_help_of_a_command(words: list[str], fakes: tuple[Entry, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: minka greet-all [options] NAME\n")
    assert "What follows is for those who read on." in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nope"], 2, "minka nope: no such command; `minka --help` lists all commands\n"),
        (
            ["gret-all"],
            2,
            "minka gret-all: no such command; did you mean greet-all? `minka --help` lists all commands\n",
        ),
        (
            ["greet-all"],
            2,
            "minka greet-all: the following arguments are required: NAME; `minka greet-all --help` explains them\n",
        ),
        (["greet-all", "x", "--tims", "2"], 2, "minka greet-all: there is no flag --tims; did you mean --times?\n"),
        (["greet-all", "x", "-n", "two"], 2, "minka greet-all: argument -n/--times: invalid int value: 'two'\n"),
        (["fail", "model"], ModelError.exit_code, "minka fail: x.gguf is truncated\n"),
    ],
)
def test_an_error_is_one_line(
    words: list[str], code: int, message: str, fakes: tuple[Entry, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == code
    captured = capsys.readouterr()
    assert captured.err == message
    assert captured.out == ""


def test_an_interrupt_is_quiet(fakes: tuple[Entry, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fail", "interrupt"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_is_not_hidden(fakes: tuple[Entry, ...]) -> None:
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail", "bug"])


# -- minka itself


def test_the_overview_lists_the_commands_under_headings(
    fakes: tuple[Entry, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "SECTIONS", {"Greet": ("greet-all",), "Nothing": ("none",)})
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "\nGreet:\n  greet-all  Greet somebody.\n" in out
    assert "\nMore:\n  broken     Cannot be imported.\n  fail       Fail in several ways.\n" in out
    assert "Nothing" not in out


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == UsageError.exit_code
    assert "usage: minka COMMAND" in capsys.readouterr().out


def test_no_command_has_two_headings() -> None:
    names = [name for section in cli.SECTIONS.values() for name in section]
    assert len(names) == len(set(names))


def test_the_version_is_the_packages() -> None:
    project = Path(__file__).parent.parent / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["version"] == minka.__version__
    done = python("-m", "minka", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"minka {minka.__version__}\n", "")


def test_help_imports_no_library() -> None:
    program = "import sys; from minka.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = python("-c", program)
    heavy = {"llama_cpp", "numpy", "starlette", "uvicorn", "huggingface_hub", "rich", "gguf", "jinja2", "minka.params"}
    assert done.returncode == 0
    assert heavy & set(done.stderr.split()) == set()


def test_nobody_reading_the_output_is_quiet() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "minka", "--help"], stdout=write_end, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_name_that_is_no_unicode_can_be_written(tiny_models: TinyModels, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"b\xff.gguf")
    try:
        path.write_bytes(tiny_models("llama").read_bytes())
    except OSError:
        pytest.skip("this file system does not allow such a name")
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    words = [sys.executable, "-m", "minka", "gguf", "dump", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=strict)
    assert (done.returncode, done.stderr) == (0, "")
    assert "b\\udcff.gguf: GGUF version 3" in done.stdout
