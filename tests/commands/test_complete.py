from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terminal.desk import Desk, desk, environment, oracle
from tests.terminal.keyboard import Terminal

__all__ = ["desk", "oracle"]


def test_the_prompt_and_its_completion_are_written_exactly(desk: Desk) -> None:
    result = desk.run("complete", "-p", "Once upon", "-n", "16")
    assert result.code == 0
    assert result.text == "Once upon" + desk.complete("Once upon")
    assert "t/s" not in result.err


def test_the_prompt_can_be_left_out(desk: Desk) -> None:
    assert desk.run("complete", "-p", "Once", "-n", "16", "--no-display-prompt").text == desk.complete("Once")


def test_escapes(desk: Desk) -> None:
    assert desk.run("complete", "-p", "a\\tb", "-n", "4").text == "a\tb" + desk.complete("a\tb", 4)
    assert desk.run("complete", "-p", "a\\tb", "-n", "4", "--no-escape").text == "a\\tb" + desk.complete("a\\tb", 4)


def test_all_parts_of_the_prompt_follow_each_other(desk: Desk) -> None:
    Path("f.txt").write_bytes(b"two\\n \n")
    Path("b.bin").write_bytes(b"three\r\n")
    result = desk.run("complete", "-p", "one ", "-f", "f.txt", "-bf", "b.bin", "-n", "16", stdin=b"four\n")
    prompt = "one two\\n three\r\nfour"
    assert result.text == prompt + desk.complete(prompt)


def test_a_binary_file_may_be_no_utf8_and_a_text_file_may_not(desk: Desk) -> None:
    Path("x").write_bytes(b"caf\xe9")
    assert desk.run("complete", "-bf", "x", "-n", "4").text == "caf\ufffd" + desk.complete("caf\ufffd", 4)
    result = desk.run("complete", "-f", "x", "-n", "4")
    assert result.code == 2
    assert "no UTF-8 text (byte 3); give it with -bf" in result.err


def test_bytes_that_are_no_character_are_written_as_the_engine_gives_them(desk: Desk) -> None:
    bias = [word for byte in (0xC3, 0x28) for word in ("-l", f"{3 + byte}+1000")]  # the tokens <0xC3> and <0x28>
    text = desk.run("complete", "-p", "a", "-n", "6", "--no-display-prompt", *bias).text
    assert set(text) <= {"\ufffd", "("}
    assert "\ufffd" in text


def test_stop_strings_and_special_tokens(desk: Desk) -> None:
    whole = desk.complete("Once")
    stopped = desk.run("complete", "-p", "Once", "-n", "16", "--no-display-prompt", "-r", whole[8:11])
    assert stopped.text == whole[: whole.index(whole[8:11])]
    end = ("-l", "2+1000")  # the end token, </s>
    assert desk.run("complete", "-p", "Once", *end).text == "Once"
    assert desk.run("complete", "-p", "Once", "--special", *end).text == "Once</s>"


def test_a_broken_chat_template_is_not_in_the_way(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CHAT_TEMPLATE", "{% broken")
    assert desk.run("complete", "-p", "Once", "-n", "4").text == "Once" + desk.complete("Once", 4)


def test_output_is_written_to_a_file_as_well(desk: Desk) -> None:
    Path("o.txt").write_text("old")
    result = desk.run("complete", "-p", "Once", "-n", "16", "-o", "o.txt")
    assert Path("o.txt").read_bytes() == result.out
    assert list(desk.folder.glob(".*")) == []


def test_a_failure_leaves_the_old_output_file(desk: Desk) -> None:
    Path("o.txt").write_text("old")
    assert desk.run("complete", "-p", "long " * 2000, "-o", "o.txt").code == 2
    assert Path("o.txt").read_text() == "old"
    assert list(desk.folder.glob(".*")) == []


def test_verbose(desk: Desk) -> None:
    result = desk.run("complete", "-p", "Once", "-n", "4", "-v", "--verbose-prompt")
    assert "[ Prompt: " in result.err
    assert "number of tokens in prompt = " in result.err
    assert result.text == "Once" + desk.complete("Once", 4)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "there is no prompt: give one with -p, -f or -bf, or pipe it in"),
        (("-cnv", "-p", "x"), 2, "minka chat"),
        (("-bf", "none"), 2, "cannot read the prompt file none"),
        (("-p", "x", "-o", "none/x"), 2, "folder none does not exist"),
        (("-p", "x", "-o", "."), 2, "is a folder"),
        (("-p", "x", "--chat-template", "x"), 2, "there is no flag --chat-template"),
        (("-p", "x", "--top-p", "x"), 2, "--top-p must be a number"),
        (("-p", "x", "-m", "none.gguf"), 1, "none.gguf does not exist"),
        (("-p", "long " * 2000), 2, "exceeds the available context size (2048 tokens)"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    desk: Desk, args: tuple[str, ...], code: int, says: str
) -> None:
    result = desk.run("complete", *args)
    assert result.code == code
    line = result.err.splitlines()[-1]
    assert line.startswith("minka complete: ")
    assert says in line


def started(desk: Desk, *args: str) -> subprocess.Popen[bytes]:
    """A completion that would not end by itself."""
    command = [sys.executable, "-m", "minka", "complete", "-m", desk.endless, "--temp", "0", *args]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(desk.folder),
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_text_and_keeps_it(desk: Desk, number: signal.Signals, code: int) -> None:
    with started(desk, "-p", "Once", "-o", "o.txt") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begun = process.stdout.read(60)
        process.send_signal(number)
        text = begun + process.stdout.read()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == code
    assert text.decode().startswith("Once" + desk.complete("Once"))
    assert Path("o.txt").read_bytes() == text


def test_nobody_reads_any_more(desk: Desk) -> None:
    with started(desk, "-p", "Once") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(60)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == 141


def test_at_a_terminal_the_last_line_is_ended(desk: Desk) -> None:
    words = ["minka", "complete", "-m", desk.model, "--temp", "0", "-p", "Once", "-n", "8"]
    with Terminal(*words, env=environment(desk.folder), cwd=desk.folder) as terminal:
        terminal.wait("Once" + desk.complete("Once", 8) + "\n")
        assert terminal.wait_end() == 0
        assert terminal.echoes
