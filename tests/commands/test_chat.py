from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minka.chat.messages import Message
from tests.terminal.desk import Desk, desk, environment, oracle, user
from tests.terminal.keyboard import Terminal

__all__ = ["desk", "oracle"]

CTRL_C, CTRL_D, ENTER, TAB = "\x03", "\x04", "\r", "\t"


# -- one answer ------------------------------------------------------------------------------------------------------


def test_a_message_is_answered_on_standard_output_and_nothing_else_is(desk: Desk) -> None:
    result = desk.run("chat", "-p", "hello", "-n", "16")
    assert result.code == 0
    assert result.text == desk.chat(*user("hello")) + "\n"
    assert "\x1b" not in result.err
    assert "t/s" not in result.err


def test_text_that_is_piped_in_is_the_message_or_follows_it(desk: Desk) -> None:
    assert desk.run("chat", "-n", "16", stdin=b"one\ntwo\n").text == desk.chat(*user("one\ntwo")) + "\n"
    assert desk.run("chat", "-n", "16", "-p", "say", stdin=b"one\n").text == desk.chat(*user("say\n\none")) + "\n"


def test_a_file_is_the_message(desk: Desk) -> None:
    Path("m.txt").write_text("from a file \\n\n")
    assert desk.run("chat", "-n", "16", "-f", "m.txt").text == desk.chat(*user("from a file \\n")) + "\n"


def test_escapes_are_processed_in_words_of_the_command_line_only(desk: Desk) -> None:
    expected = desk.chat(Message("system", "a\tb"), *user("x\ny"))
    assert desk.run("chat", "-n", "16", "-sys", "a\\tb", "-p", "x\\ny").text == expected + "\n"
    raw = desk.run("chat", "-n", "16", "-p", "x\\ny", "--no-escape").text
    assert raw == desk.chat(*user("x\\ny")) + "\n" != expected + "\n"


def test_a_system_message_from_a_file(desk: Desk) -> None:
    Path("s.txt").write_text("Be kind.\n")
    expected = desk.chat(Message("system", "Be kind."), *user("hi"))
    assert desk.run("chat", "-n", "16", "-sysf", "s.txt", "-p", "hi").text == expected + "\n"


def test_timings_are_written_to_standard_error_with_v(desk: Desk) -> None:
    result = desk.run("chat", "-p", "hello", "-n", "4", "-v")
    assert re.search(r"^\[ Prompt: [\d.]+ t/s \| Generation: [\d.]+ t/s \]$", result.err, re.MULTILINE)
    assert result.text == desk.chat(*user("hello"), n=4) + "\n"


def test_a_transcript_of_one_answer(desk: Desk) -> None:
    result = desk.run("chat", "-p", "hello", "-n", "16", "-o", "t.txt")
    assert Path("t.txt").read_text() == f"User:\nhello\n\nAssistant:\n{result.text[:-1]}\n\n"


def test_verbose_prompt_prints_the_tokens(desk: Desk) -> None:
    result = desk.run("chat", "-p", "hello", "-n", "1", "--verbose-prompt")
    assert "number of tokens in prompt = " in result.err
    assert "'<|im_start|>'" in result.err


def test_a_stop_string_ends_the_answer(desk: Desk) -> None:
    whole = desk.chat(*user("hello"))
    result = desk.run("chat", "-p", "hello", "-n", "16", "-r", whole[10:14])
    assert result.text == whole[: whole.index(whole[10:14])] + "\n"


@pytest.mark.parametrize(
    ("args", "stdin", "code", "says"),
    [
        ((), b"", 2, "there is no message: give one with -p or -f, or pipe it in"),
        (("-p", ""), b"", 2, "there is no message"),
        (("-p", "hi", "--tempp", "1"), b"", 2, "there is no flag --tempp; did you mean --temp?"),
        (("-p", "hi", "--temp", "hot"), b"", 2, "--temp must be a number"),
        (("-p", "hi", "--port", "80"), b"", 2, "there is no flag --port"),
        (("-p", "hi", "-dev", "CUDA9"), b"", 2, "there is no device 'CUDA9'"),
        (("-p", "hi", "-ot", "ffn"), b"", 2, "'ffn' puts no tensor anywhere; give PATTERN=TYPE, as in exps=CPU"),
        (("-p", "hi", "--mmproj", "x"), b"", 2, "does not support"),
        (("-p", "hi", "-sys", "a", "-sysf", "b"), b"", 2, "-sys and -sysf are both given"),
        (("-sysf", "none", "-p", "hi"), b"", 2, "cannot read the system prompt file none: No such file"),
        (("-f", "none"), b"", 2, "cannot read the prompt file none"),
        (("-p", "hi", "-o", "none/t.txt"), b"", 2, "folder none does not exist"),
        (("-p", "hi", "-m", "none.gguf"), b"", 1, "the model file none.gguf does not exist"),
        (("-p", "hi", "-l", "99999+1"), b"", 2, "token id 99999 is outside the vocabulary"),
        ((), b"\xff\xff", 2, "standard input is no UTF-8 text (byte 0)"),
        ((), b"long " * 2000, 2, "exceeds the available context size (2048 tokens)"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    desk: Desk, args: tuple[str, ...], stdin: bytes, code: int, says: str
) -> None:
    result = desk.run("chat", *args, stdin=stdin)
    assert result.code == code
    assert result.out == b""
    line = result.err.splitlines()[-1]
    assert line.startswith("minka chat: ")
    assert says in line
    assert "Traceback" not in result.err


def test_a_bad_template_is_one_line(desk: Desk) -> None:
    result = desk.run("chat", "-p", "hi", "--chat-template", "{% broken")
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("minka chat: ")


def test_a_full_disk_is_one_line(desk: Desk) -> None:
    env = environment(desk.folder)
    command = [sys.executable, "-m", "minka", "chat", "-m", desk.model, "-n", "4", "-p", "hi"]
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    with full.open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == "minka chat: cannot write the output: No space left on device"


def test_ctrl_c_in_the_only_answer_keeps_what_there_is(desk: Desk) -> None:
    command = [sys.executable, "-m", "minka", "chat", "-m", desk.endless, "-p", "hi", "--temp", "0", "-o", "t.txt"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment(desk.folder)
    ) as process:
        assert process.stdout is not None
        begun = process.stdout.read(40)
        process.send_signal(signal.SIGINT)
        text = (begun + process.stdout.read()).decode()
    assert process.returncode == 130
    assert text.endswith("\n")
    assert Path("t.txt").read_text() == f"User:\nhi\n\nAssistant:\n{text[:-1]}\n\n"


HEAVY = ("llama_cpp", "numpy", "jinja2", "rich", "prompt_toolkit", "gguf", "huggingface_hub", "minka.runtime")


@pytest.mark.parametrize(
    ("command", "own"), [("chat", ["Message", "Output"]), ("complete", ["Prompt", "Taking turns", "Output"])]
)
def test_the_help_is_grouped_and_imports_nothing_that_takes_long(command: str, own: list[str]) -> None:
    code = f"import sys; from minka.cli import main; main(['{command}', '--help']); print(*sys.modules, sep=chr(10))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    headings = re.findall(r"^(\w.*):$", done.stdout, re.MULTILINE)
    assert headings[: len(own) + 3] == ["options", *own, "Model and devices", "Placement of weights"]
    assert headings[-1] == "Log"
    assert "--host" not in done.stdout
    assert set(done.stdout.splitlines()).isdisjoint(HEAVY)


# -- a conversation over a pipe --------------------------------------------------------------------------------------


def talk(desk: Desk, *lines: str, n: int = 16, args: tuple[str, ...] = ()) -> str:
    result = desk.run("chat", "--simple-io", "-n", str(n), *args, stdin="\n".join(lines).encode())
    assert result.code == 0
    assert b"\x1b" not in result.out
    return result.text


def test_simple_io_reads_messages_and_commands_from_a_pipe(desk: Desk) -> None:
    first = desk.chat(*user("hello\nthere"))
    second = desk.chat(*user("hello\nthere", first, "and?"))
    screen = talk(desk, "hello\\", "there", "and?")
    assert f"> . {first}\n[cut by n_predict = 16]\n[ Prompt: " in screen
    assert f"> {second}\n" in screen
    assert screen.startswith("Minka ")


def test_a_saved_conversation_goes_on_in_another_process(desk: Desk) -> None:
    talk(desk, "hello", "/save talk.json")
    saved = json.loads(Path("talk.json").read_text())["messages"]
    answer = desk.chat(*user("hello"))
    assert saved == [{"role": "user", "content": "hello"}, {"role": "assistant", "content": answer}]
    expected = desk.chat(*user("hello", answer, "and?"))
    assert f"> {expected}\n" in talk(desk, "/load talk.json", "and?")


def test_settings_last_and_regen_gives_the_same_greedy_answer(desk: Desk) -> None:
    answer = desk.chat(*user("hello"), n=5)
    screen = talk(desk, "/set n_predict 5", "hello", "/regen", "/save talk.json")
    assert screen.count(f"> {answer}\n") == 2
    assert "Prompt: cached" in screen
    assert [m["content"] for m in json.loads(Path("talk.json").read_text())["messages"]] == ["hello", answer]


def test_a_conversation_that_outgrows_the_context_goes_on_after_clear(desk: Desk) -> None:
    lines = ["/read big.txt", "what is it?", "/save talk.json", "/clear", "hello"]
    Path("big.txt").write_text("word " * 3000)
    screen = talk(desk, *lines)
    assert re.search(r"the conversation has [\d,]+ tokens, but the context holds 2,048: shorten the message", screen)
    assert json.loads(Path("talk.json").read_text())["messages"] == []
    assert f"> {desk.chat(*user('hello'))}\n" in screen


def test_an_answer_at_the_end_of_the_context_is_kept(desk: Desk) -> None:
    screen = talk(desk, "hello", "/save talk.json", n=-1, args=("-c", "256"))
    assert "the context of 256 tokens is full: /clear to begin anew" in screen
    assert "Context: 100 % full (255 of 256 tokens)" in screen
    answer = json.loads(Path("talk.json").read_text())["messages"][1]["content"]
    assert f"> {answer}\n" in screen


def test_conversation_goes_on_after_the_first_message(desk: Desk) -> None:
    screen = talk(desk, "and?", args=("-cnv", "-p", "hello"))
    first = desk.chat(*user("hello"))
    assert f"> hello\n{first}\n" in screen
    assert f"> {desk.chat(*user('hello', first, 'and?'))}\n" in screen


def test_a_single_turn(desk: Desk) -> None:
    screen = talk(desk, "hello", "and?", args=("-st", "--no-show-timings"))
    assert screen.endswith(f"> {desk.chat(*user('hello'))}\n[cut by n_predict = 16]\n\n")


def test_multiline_input(desk: Desk) -> None:
    assert f". {desk.chat(*user('hello' + chr(10) + 'there'))}\n" in talk(desk, "hello", "there\\", args=("-mli",))


# -- a conversation at a terminal ------------------------------------------------------------------------------------


def at_terminal(desk: Desk, *args: str, model: str | None = None) -> Terminal:
    words = ["minka", "chat", "-m", model or desk.model, "--temp", "0", *args]
    return Terminal(*words, env=environment(desk.folder), cwd=desk.folder)


def test_a_conversation_at_a_terminal(desk: Desk) -> None:
    first = desk.chat(*user("hello\nthere"))
    with at_terminal(desk, "-n", "16") as terminal:
        assert "loading the model" in terminal.wait("Minka ")
        terminal.wait_prompt()
        terminal.type(f"hello\\{ENTER}there{ENTER}")
        terminal.wait(f"{first}\n[cut by n_predict = 16]\n[ Prompt: ")
        terminal.wait_prompt()
        pasted = "def f():\r\n    pass"
        terminal.type(f"\x1b[200~{pasted}\x1b[201~{ENTER}")
        second = desk.chat(*user("hello\nthere", first, "def f():\n    pass"))
        terminal.wait(f"{second}\n")
        terminal.wait_prompt()
        terminal.type(f"/reg{TAB}")
        terminal.wait("/regen")
        terminal.type(ENTER)
        terminal.wait(f"{second}\n")
        terminal.wait_prompt()
        terminal.type(f"/save talk.json{ENTER}")
        terminal.wait("saved 4 messages")
        terminal.wait_prompt()
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0
        assert terminal.echoes
    saved = json.loads(Path("talk.json").read_text())["messages"]
    assert [message["content"] for message in saved] == ["hello\nthere", first, "def f():\n    pass", second]
    assert "+hello\n+there\n" in Path("minka/chat-history").read_text()


def test_ctrl_c_stops_the_answer_and_not_the_chat(desk: Desk) -> None:
    with at_terminal(desk, model=desk.endless) as terminal:
        terminal.wait_prompt()
        terminal.type(f"hello{ENTER}")
        begun = desk.chat(*user("hello"), n=8)
        terminal.wait(begun)
        terminal.type("typed ahead")
        terminal.type(CTRL_C)
        terminal.wait("[stopped]\n[ Prompt: ")
        terminal.wait_prompt()
        terminal.type(f"{CTRL_C}/save talk.json{ENTER}")
        terminal.wait("saved 2 messages")
        terminal.wait_prompt()
        terminal.type(CTRL_C)
        terminal.wait("(Ctrl-C again leaves")
        terminal.wait_prompt()
        terminal.type(CTRL_C)
        assert terminal.wait_end() == 130
        assert terminal.echoes
        screen = terminal.screen
    saved = json.loads(Path("talk.json").read_text())["messages"][1]["content"]
    assert saved.startswith(begun)
    assert f"{saved}\n[stopped]" in screen


def test_a_request_to_terminate_leaves_a_usable_terminal(desk: Desk) -> None:
    with at_terminal(desk) as terminal:
        terminal.wait_prompt()
        assert not terminal.echoes
        terminal.process.terminate()
        assert terminal.wait_end() == 143
        assert terminal.echoes


def test_a_message_over_the_context_comes_back_to_be_edited(desk: Desk) -> None:
    with at_terminal(desk, "-n", "4") as terminal:
        terminal.wait_prompt()
        terminal.type(f"\x1b[200~{'word ' * 3000}\x1b[201~{ENTER}")
        terminal.wait("but the context holds 2,048")
        terminal.wait_prompt()
        terminal.type(f"{CTRL_C}hello{ENTER}")
        terminal.wait(desk.chat(*user("hello"), n=4))
        terminal.wait_prompt()
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0


def test_ctrl_c_while_the_model_loads_leaves(desk: Desk) -> None:
    with at_terminal(desk, model=desk.endless) as terminal:
        terminal.wait("loading the model")
        terminal.type(CTRL_C)
        # It comes while the model loads or just after, when the first press at the prompt only asks.
        if terminal.process.poll() is None:
            terminal.type(CTRL_C)
        assert terminal.wait_end() == 130
        assert terminal.echoes
