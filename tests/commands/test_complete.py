from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minka.chat.messages import Message
from minka.terminal import output
from minka.tools.cvector_run import write
from minka.types import Timings
from tests import tiny
from tests.terminal.desk import Desk, desk, environment, oracle, user
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
        (("-cnv", "-bf", "x"), 2, "-bf is for plain text, and a conversation is asked for; add -no-cnv"),
        (("-sys", "x", "--prompt-cache", "c"), 2, "--prompt-cache is for plain text"),
        (("-i", "--prompt-cache", "c", "--prompt-cache-all"), 2, "--prompt-cache-all and -i exclude each other"),
        (("-p", "x", "-gan", "2"), 2, "-gan is a llama.cpp flag that Minka does not have: give --rope-scaling yarn"),
        (("-bf", "none"), 2, "cannot read the prompt file none"),
        (("-p", "x", "-o", "none/x"), 2, "folder none does not exist"),
        (("-p", "x", "-o", "."), 2, "is a folder"),
        (("-p", "x", "--poll", "101"), 2, "--poll must be between 0 and 100, but got 101"),
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


# -- turns


def test_a_system_message_makes_a_conversation(desk: Desk) -> None:
    whole = desk.chat(Message("system", "Be kind."), *user("hi"))
    assert desk.run("complete", "-sys", "Be kind.", "-st", "-p", "hi", "-n", "16").text == whole + "\n"
    Path("s.txt").write_text("Be kind.\n")
    held = desk.run("complete", "-sysf", "s.txt", "-n", "16", "--simple-io", stdin=b"hi\n").text
    assert f"> {whole}\n" in held
    assert "> hi\n" + desk.chat(*user("hi")) in desk.run("complete", "-cnv", "-p", "hi", "-n", "16").text
    plain = desk.run("complete", "-sys", "Be kind.", "-no-cnv", "-p", "hi", "-n", "16").text
    assert plain == "hi" + desk.complete("hi")


def test_turns_append_lines_of_the_user_between_prefix_and_suffix(desk: Desk) -> None:
    words = ("complete", "-i", "-p", "Once", "-n", "8", "--in-prefix", " ", "--in-suffix", "\\nAI:", "-o", "o.txt")
    first = desk.complete("Once", 8)
    asked = f"Once{first} me\n"
    result = desk.run(*words, stdin=b"me\nand you\n")
    assert result.code == 0
    assert result.text.startswith(asked + "\nAI:")
    second = result.text[len(f"{asked}\nAI:") :].partition(" and you\n\nAI:")[0]
    assert len(second) > 8
    assert desk.run(*words[:8], stdin=b"").text == f"Once{first} \n", "the end of the lines is the end"
    assert Path("o.txt").read_bytes().decode() + "\n" == result.text


def test_an_empty_line_lets_the_model_go_on(desk: Desk) -> None:
    text = desk.run("complete", "-i", "-p", "Once", "-n", "4", stdin=b"\n\n").text
    assert text == "Once" + desk.complete("Once", 12) + "\n"


def test_the_user_begins_where_the_prompt_ends_so(desk: Desk) -> None:
    words = ("complete", "-n", "4", "-r", "User:", "-i", "-p", "Chat.\\nUser:")
    text = desk.run(*words, stdin=b" hi\n").text
    assert text.startswith("Chat.\nUser: hi\n")
    assert len(text) > len("Chat.\nUser: hi\n")
    assert desk.run("complete", "-n", "4", "-if", "-p", "Once", stdin=b" hi\n").text.startswith("Once hi\n")
    assert desk.run("complete", "-n", "4", "-i", stdin=b"Once\n").text.startswith("Once\n")
    assert desk.run(*words, stdin=b"").text == "Chat.\nUser:\n"


def test_a_reverse_prompt_stays_in_the_text(desk: Desk) -> None:
    whole = desk.complete("Once", 40)
    word = whole[20:24]
    cut = whole[: whole.index(word) + len(word)]
    text = desk.run("complete", "-i", "-p", "Once", "-n", "40", "-r", word, stdin=b"").text
    assert text.startswith("Once" + cut)
    assert len(text) <= len("Once" + cut) + 12, "no more than the rest of the last token"


def test_after_its_end_the_model_hands_over_with_the_reverse_prompt(desk: Desk) -> None:
    words = ("complete", "-i", "-p", "Once", "-r", "User:", "-l", "2+1000", "--in-prefix-bos")  # the end token, </s>
    assert desk.run(*words, stdin=b" hi\n").text == "OnceUser: hi\nUser:\n"


def test_a_full_context_drops_its_middle(desk: Desk) -> None:
    words = ("complete", "-i", "-p", "Once", "-c", "256", "-n", "100", "--keep", "4")
    full = desk.run(*words, stdin=b"a\nb\nc\nd\n")
    assert (full.code, full.err.splitlines()[-1][:24]) == (2, "minka complete: request ")
    text = desk.run(*words, "--context-shift", stdin=b"a\nb\nc\nd\n").text
    assert [line[-1:] for line in text.splitlines()[:4]] == ["a", "b", "c", "d"]
    assert text.startswith("Once" + desk.complete("Once", 100) + "a\n")


def test_turns_with_a_prompt_cache(desk: Desk) -> None:
    words = ("complete", "-i", "-p", "Once upon a time", "-n", "8")
    plain = desk.run(*words, "-fa", "on", stdin=b"a\n").text
    assert desk.run(*words, "--prompt-cache", "cache", stdin=b"a\n").text == plain
    assert Path("cache").exists()
    assert desk.run(*words, "--prompt-cache", "cache", stdin=b"a\n").text == plain


def test_ctrl_c_hands_over_and_then_leaves(desk: Desk) -> None:
    words = ("minka", "complete", "-m", desk.endless, "--temp", "0", "-i", "-p", "Once", "--in-prefix", ">>")
    with Terminal(*words, env=environment(desk.folder), cwd=desk.folder) as terminal:
        terminal.wait("Once" + desk.complete("Once"))
        terminal.type("\x03")
        terminal.wait(">>")
        terminal.type("\x03")
        assert terminal.wait_end() == 130
        assert terminal.echoes


# -- prompt cache


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> list[Timings]:
    """Of each answer."""
    found: list[Timings] = []

    def note(timings: Timings, n_past: int, n_ctx: int) -> str:
        found.append(timings)
        return ""

    monkeypatch.setattr(output, "timings_line", note)
    return found


def test_a_prompt_is_computed_once(desk: Desk, timings: list[Timings]) -> None:
    words = ("complete", "-p", "Once upon a time", "-n", "8", "-v", "--prompt-cache", "cache")
    first = desk.run(*words).text
    assert first == "Once upon a time" + desk.complete("Once upon a time", 8)
    assert desk.run(*words).text == first
    assert timings[-1].prompt_n == 1
    longer = desk.run("complete", "-p", "Once upon a time there", *words[3:]).text
    assert longer == "Once upon a time there" + desk.complete("Once upon a time there", 8)
    assert timings[-1].cache_n > 4
    assert desk.run(*words).text == first


def test_without_a_prompt_the_text_of_the_file_goes_on(desk: Desk) -> None:
    whole = "Once upon" + desk.complete("Once upon", 24)
    cache = ("--prompt-cache", "cache", "--prompt-cache-all")
    assert whole.startswith(desk.run("complete", "-p", "Once upon", "-n", "8", *cache).text)
    assert whole.startswith(desk.run("complete", "-n", "8", *cache).text)
    assert desk.run("complete", "-n", "8", *cache).text == whole
    Path("cache").unlink()
    desk.run("complete", "-p", "Once upon", "-n", "8", *cache[:2])
    again = desk.run("complete", "-n", "8", *cache[:2], "--no-display-prompt").text
    assert again == desk.complete("Once upon", 8)


def test_a_cache_can_be_left_as_it_is(desk: Desk) -> None:
    desk.run("complete", "-p", "Once", "-n", "2", "--prompt-cache", "cache")
    before = Path("cache").read_bytes()
    words = ("complete", "-p", "Once upon a time", "-n", "4", "--prompt-cache", "cache", "--prompt-cache-ro")
    assert desk.run(*words, "--prompt-cache-all").text == "Once upon a time" + desk.complete("Once upon a time", 4)
    assert Path("cache").read_bytes() == before
    desk.run("complete", "-p", "Once", "-n", "2", "--prompt-cache", "none", "--prompt-cache-ro")
    assert not Path("none").exists()


@pytest.mark.parametrize("writer", [tiny.write_swa, tiny.write_recurrent, tiny.write_hybrid])
def test_other_kinds_of_memory(desk: Desk, timings: list[Timings], writer: Callable[[Path], Path]) -> None:
    words = ("complete", "-m", str(writer(Path("other.gguf"))), "-p", "Once upon a time", "-n", "8", "-fa", "off", "-v")
    plain = desk.run(*words).text
    for _ in range(2):
        assert desk.run(*words, "--prompt-cache", "cache").text == plain
    assert timings[-1].prompt_n == 1


def test_tokens_are_counted(desk: Desk) -> None:
    err = desk.run("complete", "-p", "Once", "-n", "9", "-ptc", "4").err
    lines = [line for line in err.splitlines() if line]
    assert all(line.startswith("Tokens consumed so far = ") and line.endswith(" / 2048") for line in lines)
    assert [int(line.split()[5]) % 4 for line in lines] == [0] * len(lines)
    assert len(lines) in (2, 3)


def test_flags_of_llama_completion_that_change_nothing(desk: Desk) -> None:
    flags = (
        "--simple-io",
        "--color",
        "off",
        "-no-cnv",
        "--no-warmup",
        "--no-context-shift",
        "--keep",
        "3",
        "-ptc",
        "0",
        "-np",
        "2",
        "-gan",
        "1",
        "-gaw",
        "512",
        "--chat-template",
        "llama2",
        "--jinja",
        "-ot",
        "ffn=CPU",
        "--fit",
        "on",
    )
    assert desk.run("complete", "-p", "Once", "-n", "4", *flags).text == "Once" + desk.complete("Once", 4)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("-p", "x", "--prompt-cache-all"), "need a file: --prompt-cache FILE"),
        (("-p", "x", "--prompt-cache", "none/x"), "the folder of the prompt cache none/x does not exist"),
        (("-p", "x", "--prompt-cache", "x", "--lora", "y"), "--prompt-cache and --lora exclude each other"),
        (("-p", "x", "--prompt-cache", "other"), "other is no prompt cache"),
        (("--prompt-cache", "new"), "there is no prompt"),
    ],
)
def test_prompt_caches_that_cannot_be(desk: Desk, args: tuple[str, ...], says: str) -> None:
    Path("other").write_text("something else")
    result = desk.run("complete", *args)
    assert result.code == 2
    assert says in result.err.splitlines()[-1]


def test_a_control_vector_changes_the_text(desk: Desk) -> None:
    direction = np.random.default_rng(1).normal(size=64).astype(np.float32)
    write(Path("c.gguf"), [direction], "llama")
    flags = ("--control-vector-scaled", "c.gguf:4", "--control-vector-layer-range", "1", "1")
    plain, steered = (desk.run("complete", "-p", "Once", "-n", "8", *words).text for words in ((), flags))
    assert plain != steered
    assert desk.run("complete", "-p", "Once", "-n", "8", "--control-vector", "none.gguf").code == 1
