from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from minka.chat.messages import Message
from minka.commands.chat import FlagSpelling
from minka.errors import ContextSizeError, MinkaError, NativeError, RequestError
from minka.params import GenerationParams, SamplingParams
from minka.terminal.answer import Answer, Show, Stopper, Watch
from minka.terminal.chat import Chat, Manners
from minka.terminal.conversation import Conversation
from minka.terminal.files import Transcript
from minka.terminal.output import Output, Screen
from minka.terminal.tuning import Tuning
from minka.types import FinishReason, Progress, Timings

Reply = str | Answer | MinkaError | Callable[[], None]
TIMINGS = Timings(prompt_n=10, prompt_ms=100, predicted_n=11, predicted_ms=100)


class Script:
    """A responder that says what it is told, and keeps what it was asked."""

    n_ctx, n_ctx_train = 1000, 4000

    def __init__(self, replies: Iterable[Reply]) -> None:
        self._replies = iter(replies)
        self.asked: list[tuple[Message, ...]] = []
        self.tunings: list[Tuning] = []

    def answer(self, messages: Sequence[Message], tuning: Tuning, show: Show, stopper: Stopper, watch: Watch) -> Answer:
        self.asked.append(tuple(messages))
        self.tunings.append(tuning)
        reply = next(self._replies)
        if isinstance(reply, MinkaError):
            raise reply
        if callable(reply):
            reply()
            return Answer("", TIMINGS, 20, signal=stopper.signal)
        if isinstance(reply, str):
            reply = Answer(reply, TIMINGS, 20, FinishReason.EOS)
        watch(Progress("j", 0, 900, 0, 512, 1.0))
        show(reply.text)
        return reply


class Typist:
    """A reader that types what it is told; an exception is raised."""

    def __init__(self, typed: Iterable[str | type[BaseException]]) -> None:
        self._typed = iter(typed)
        self.drafts: list[str] = []
        self.hushes = 0

    def read(self, draft: str = "") -> str:
        self.drafts.append(draft)
        text = next(self._typed, EOFError)
        if isinstance(text, str):
            return text
        raise text

    @contextmanager
    def hushed(self) -> Iterator[None]:
        self.hushes += 1
        yield


class Table:
    """A chat with a scripted model and a scripted user."""

    def __init__(
        self,
        *typed: str | type[BaseException],
        replies: Iterable[Reply] = (),
        system: str | None = None,
        manners: Manners | None = None,
        transcript: Path | None = None,
    ) -> None:
        self._stream = BytesIO()
        self.script, self.typist = Script(replies), Typist(typed)
        self.chat = Chat(
            self.script,
            self.typist,
            Screen(Output(self._stream, terminal=True), colors=False, live=False),
            FlagSpelling(),
            Tuning(SamplingParams(), GenerationParams()),
            system=system,
            model="tiny",
            transcript=Transcript(transcript),
            manners=manners,
        )

    def run(self, first: str = "") -> int:
        return self.chat.run(first)

    @property
    def screen(self) -> str:
        return self._stream.getvalue().decode()

    @property
    def said(self) -> list[str]:
        return [message.text() for message in self.chat.conversation.messages]


def test_messages_are_answered_until_the_input_ends() -> None:
    table = Table("hi", "  ", "", "more", replies=["hello", "yes"], system="s")
    assert table.run() == 0
    assert table.said == ["s", "hi", "hello", "more", "yes"]
    assert [len(messages) for messages in table.script.asked] == [2, 4]
    assert table.screen == (
        "hello\n[ Prompt: 100.0 t/s | Generation: 100.0 t/s ]\n\nyes\n[ Prompt: 100.0 t/s | Generation: 100.0 t/s ]\n\n"
    )
    assert table.typist.hushes == 2


def test_without_timings_only_a_context_that_is_nearly_full_is_shown() -> None:
    full = Answer("b", TIMINGS, 900, FinishReason.EOS)
    table = Table("hi", "more", replies=["a", full], manners=Manners(show_timings=False))
    table.run()
    assert table.screen == "a\n\nb\n[ Context: 90 % full (900 of 1,000 tokens) ]\n\n"


def test_a_first_message_is_answered_before_the_user_types() -> None:
    table = Table("more", replies=["a", "b"])
    table.run("hi")
    assert table.said == ["hi", "a", "more", "b"]
    assert table.screen.startswith("> hi\na\n")


@pytest.mark.parametrize("typed", ["/exit", "/quit"])
def test_leaving(typed: str) -> None:
    assert Table(typed, "never answered").run() == 0


def test_a_single_turn_leaves_after_the_answer() -> None:
    table = Table("/set seed 1", "hi", "never answered", replies=["a"], manners=Manners(single_turn=True))
    assert table.run() == 0
    assert table.said == ["hi", "a"]


def test_a_single_turn_that_fails_has_the_exit_code_of_the_error() -> None:
    table = Table("hi", replies=[NativeError("broken")], manners=Manners(single_turn=True))
    assert table.run() == 1
    assert "broken\n" in table.screen


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_asks_and_a_second_one_leaves() -> None:
    table = Table(KeyboardInterrupt, KeyboardInterrupt, "never answered")
    assert table.run() == 130
    assert table.screen == "(Ctrl-C again leaves, as does Ctrl-D)\n"


def test_ctrl_c_asks_again_after_a_message() -> None:
    table = Table(KeyboardInterrupt, "hi", KeyboardInterrupt, "/exit", replies=["a"])
    assert table.run() == 0
    assert table.screen.count("Ctrl-C again") == 2


def test_a_stopped_answer_is_kept_as_far_as_it_came() -> None:
    stopped = Answer("half of", TIMINGS, 20, signal=signal.SIGINT)
    table = Table("hi", "go on", replies=[stopped, "the rest"])
    assert table.run() == 0
    assert table.said == ["hi", "half of", "go on", "the rest"]
    assert "half of\n[stopped]\n[ Prompt" in table.screen


def test_a_message_that_was_stopped_before_any_answer_comes_back_to_be_edited() -> None:
    table = Table("hi", "hi!", replies=[lambda: os.kill(os.getpid(), signal.SIGINT), "hello"])
    assert table.run() == 0
    assert table.typist.drafts == ["", "hi", ""]
    assert table.said == ["hi!", "hello"]
    assert "the message was taken back" in table.screen


def test_a_request_to_terminate_ends_the_chat_with_its_answer_kept() -> None:
    table = Table("hi", "never answered", replies=[Answer("half", TIMINGS, 20, signal=signal.SIGTERM)])
    assert table.run() == 143
    assert table.said == ["hi", "half"]


def test_a_request_to_terminate_at_the_prompt_ends_the_program() -> None:
    table = Table("hi", replies=["a"])

    def read(draft: str = "") -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the program goes on")

    table.typist.read = read  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        table.run()
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


# -- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_is_shown_and_nothing_is_lost() -> None:
    table = Table("a", "b", "c", replies=["yes", RequestError("roles must alternate"), "well"])
    assert table.run() == 0
    assert table.said == ["a", "yes", "c", "well"]
    assert table.typist.drafts == ["", "", "b", ""]
    assert "roles must alternate\n\n" in table.screen


def test_a_conversation_over_the_context_says_what_to_do() -> None:
    table = Table("a", replies=[ContextSizeError(1200, 1000)])
    table.run()
    assert table.screen.strip() == (
        "the conversation has 1,200 tokens, but the context holds 1,000: shorten the message, /clear to begin anew "
        "(/save FILE keeps it), or start again with --ctx-size up to 4000"
    )


def test_a_larger_context_is_not_advised_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Script, "n_ctx_train", 1000)
    table = Table("a", replies=[ContextSizeError(1200, 1000)])
    table.run()
    assert table.screen.strip().endswith("(/save FILE keeps it)")


def test_an_answer_that_filled_the_context_is_kept_and_explained() -> None:
    table = Table("a", replies=[Answer("long", TIMINGS, 1000, FinishReason.LIMIT, is_full=True)])
    table.run()
    assert table.said == ["a", "long"]
    assert "the context of 1,000 tokens is full: /clear to begin anew" in table.screen
    assert "Context: 100 % full" in table.screen


@pytest.mark.parametrize(
    ("setting", "says"),
    [("/set n_predict 11", "[cut by n_predict = 11]"), ("/set t_max_predict_ms 5", "[cut by t_max_predict_ms = 5]")],
)
def test_an_answer_that_a_limit_cut_says_so(setting: str, says: str) -> None:
    table = Table(setting, "a", replies=[Answer("long", TIMINGS, 30, FinishReason.LIMIT)])
    table.run()
    assert says in table.screen


# -- commands --------------------------------------------------------------------------------------------------------


def test_regen_answers_the_last_message_again() -> None:
    table = Table("hi", "/regen", replies=["one", "two"])
    table.run()
    assert table.said == ["hi", "two"]
    assert table.script.asked[0] == table.script.asked[1]


def test_regen_keeps_the_old_answer_if_there_is_no_new_one() -> None:
    table = Table("hi", "/regen", "/regen", replies=["one", NativeError("broken"), lambda: None])
    table.run()
    assert table.said == ["hi", "one"]
    assert table.typist.drafts == ["", "", "", ""]


def test_regen_without_a_message_is_an_error() -> None:
    table = Table("/regen")
    assert table.run() == 0
    assert table.screen == "there is no message to answer again\n"


def test_clear_keeps_the_system_message() -> None:
    table = Table("hi", "/clear", "anew", replies=["a", "b"], system="s")
    table.run()
    assert table.said == ["s", "anew", "b"]


def test_system_sets_shows_and_removes() -> None:
    table = Table("/system", "/system Be a poet.", "/system", "hi", '/system ""', "/system", replies=["a"])
    table.run()
    assert table.script.asked[0][0] == Message("system", "Be a poet.")
    assert table.said == ["hi", "a"]
    assert table.screen.split("\n")[:3] == ["there is no system message", "system message set", "Be a poet."]
    assert table.screen.endswith("no system message any more\nthere is no system message\n")


def test_set_changes_the_next_answer() -> None:
    table = Table("/set temperature 0.2", "hi", "/set top_k=5", "more", replies=["a", "b"])
    table.run()
    assert [tuning.sampling for tuning in table.script.tunings] == [
        SamplingParams(temperature=0.2),
        SamplingParams(temperature=0.2, top_k=5),
    ]


def test_set_alone_lists_what_differs() -> None:
    table = Table("/set", '/set stop " = "', "/set temp 1", "/set")
    table.run()
    assert table.screen.startswith("every parameter has its default\n")
    assert table.screen.endswith("temperature = 1 (default: 0.8)\nstop =  =  (default: empty)\n")


def test_set_with_a_name_describes_it_and_a_bad_value_changes_nothing() -> None:
    table = Table("/set top_p", "/set repeat_penalty 0")
    table.run()
    assert table.screen.startswith("top_p is 0.95: keep the most likely tokens")
    assert "repeat_penalty must be between" in table.screen
    assert table.chat.tuning == Tuning(SamplingParams(), GenerationParams())


def test_files_go_out_with_the_next_message_and_come_back_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a file.txt"
    path.write_text("inside")
    table = Table(f"/read {path}", "what is it?", "again", replies=[NativeError("broken"), "a file"])
    table.run()
    assert table.said == ["--- File: a file.txt ---\ninside\nagain", "a file"]
    assert table.typist.drafts == ["", "", "what is it?", ""]
    assert "a file.txt (6 characters) goes out with the next message" in table.screen


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    table = Table(f"/read {tmp_path / 'none'}", "hi", replies=["a"])
    table.run()
    assert "No such file" in table.screen
    assert table.said == ["hi", "a"]


def test_save_and_load_bring_a_conversation_back(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    first = Table("hi", f"/save {path}", replies=["hello"], system="s")
    first.run()
    second = Table(f'/load "{path}"', "more", replies=["yes"])
    second.run()
    assert second.script.asked == [(*first.chat.conversation.messages, Message("user", "more"))]
    assert f"saved 3 messages to {path}" in first.screen
    assert f"loaded 3 messages from {path}\n" in second.screen


def test_a_loaded_question_can_be_answered(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text('[{"role": "user", "content": "hi"}]')
    table = Table(f"/load {path}", "/regen", replies=["hello"])
    table.run()
    assert table.said == ["hi", "hello"]
    assert "loaded 1 message from" in table.screen
    assert "the last one has no answer, /regen gets it" in table.screen


def test_a_bad_file_leaves_the_conversation_as_it_is(tmp_path: Path) -> None:
    table = Table("hi", f"/load {tmp_path / 'none'}", "more", replies=["a", "b"])
    table.run()
    assert table.said == ["hi", "a", "more", "b"]


def test_an_unknown_command_is_not_sent_to_the_model() -> None:
    table = Table("/sav", " /sav", replies=["a"])
    table.run()
    assert table.said == [" /sav", "a"]
    assert "did you mean /save?" in table.screen


def test_help_lists_commands_and_parameters() -> None:
    table = Table("/help")
    table.run()
    assert "/regen" in table.screen
    assert "dry_multiplier" in table.screen


# -- transcript ------------------------------------------------------------------------------------------------------


def test_the_transcript_has_all_that_was_said(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    table = Table("hi", "/regen", "/clear", "bye", replies=["one", "two", "three"], transcript=path)
    table.run()
    assert path.read_text() == (
        "User:\nhi\n\nAssistant:\none\n\nAssistant:\ntwo\n\nUser:\nbye\n\nAssistant:\nthree\n\n"
    )


def test_a_transcript_that_cannot_be_written_does_not_lose_the_answer(tmp_path: Path) -> None:
    table = Table("hi", replies=["one"], transcript=tmp_path / "none" / "t.txt")
    assert table.run() == 2
    assert table.chat.conversation == Conversation().asked("hi").answered("one")
    assert "does not exist" in table.screen
