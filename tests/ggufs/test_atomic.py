from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from minka.errors import MinkaError, UsageError
from minka.ggufs.atomic import Staging, destination, replacing


def test_the_file_appears_when_the_block_is_left(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with replacing(path) as out:
        out.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing_behind_and_the_old_file_as_it_was(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")

    def write() -> None:
        with replacing(path, force=True) as out:
            out.write(b"half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(UsageError, match="--force to overwrite"), replacing(path):
        pytest.fail("must not be entered")
    with replacing(path, force=True) as out:
        out.write(b"new")
    assert path.read_bytes() == b"new"


def test_the_input_is_named_as_such_however_it_is_spelled(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(UsageError, match="is the input"), replacing(link, inputs=(path,)):
        pytest.fail("must not be entered")


def test_a_file_that_came_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def write() -> None:
        with replacing(path) as out:
            out.write(b"mine")
            path.write_bytes(b"theirs")

    with pytest.raises(UsageError, match="exists"):
        write()
    assert path.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_and_one_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"), replacing(tmp_path / "no" / "out"):
        pytest.fail("must not be entered")
    with pytest.raises(UsageError, match="is a folder"), replacing(tmp_path, force=True):
        pytest.fail("must not be entered")


def test_a_refusal_of_the_system_is_one_clear_error() -> None:
    # Nobody, root included, can create a file in /proc.
    if not Path("/proc/self").exists():
        pytest.skip("no /proc on this system")
    with pytest.raises(MinkaError, match=r"cannot write /proc/self/out: \w+"), replacing(Path("/proc/self/out")):
        pytest.fail("must not be entered")


def test_the_mode_of_a_replaced_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with replacing(path, force=True) as out:
        out.write(b"new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_files_of_one_job_appear_together_or_not_at_all(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    def write(*, fail: bool) -> None:
        with Staging() as staging:
            with staging.open(first) as out:
                out.write(b"1")
            assert not first.exists()
            with staging.open(second) as out:
                out.write(b"2")
            if fail:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        write(fail=True)
    assert list(tmp_path.iterdir()) == []
    write(fail=False)
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/out")  # to a file that is not there yet
    for words in (b"new", b"newer"):
        with replacing(tmp_path / "link", force=words == b"newer") as out:
            out.write(words)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real" / "out").read_bytes() == words


def test_what_is_no_file_keeps_its_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(UsageError, match="is a device or a pipe"), replacing(tmp_path / name, force=True):
            pytest.fail("must not be entered")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda place, mode: place != path)  # root may write to any file
    with pytest.raises(UsageError, match="out is read-only"), replacing(path, force=True):
        pytest.fail("must not be entered")


def test_names_as_long_as_the_system_allows_and_longer(tmp_path: Path) -> None:
    with replacing(tmp_path / ("é" * 127)) as out:
        out.write(b"")
    with pytest.raises(MinkaError, match="File name too long"), replacing(tmp_path / ("n" * 300), force=True):
        pytest.fail("must not be entered")


def test_no_output_is_an_input_whatever_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"")
    (tmp_path / "hard").hardlink_to(tmp_path / "in")
    (tmp_path / "soft").symlink_to("in")
    for name in ("in", "hard", "soft"):
        with pytest.raises(UsageError, match=f"{name} is the input"):
            destination(tmp_path / name, [tmp_path / "nothing", tmp_path / "in"])
    assert destination(tmp_path / "out", [tmp_path / "in"]) == tmp_path / "out"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_part_behind(tmp_path: Path, number: signal.Signals) -> None:
    words = (
        "import sys; from pathlib import Path; from minka.ggufs.atomic import replacing\n"
        "with replacing(Path(sys.argv[1])) as out:\n"
        "    print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", words, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        assert len(list(tmp_path.iterdir())) == 1
        child.send_signal(number)
        code = child.wait()
    assert list(tmp_path.iterdir()) == []
    assert code in (128 + number, -number)


def test_signals_are_as_before_afterwards(tmp_path: Path) -> None:
    with replacing(tmp_path / "out"):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
