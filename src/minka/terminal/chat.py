"""The conversation at the keyboard: read a message or a command, do it, show what came of it, until the user leaves.

Knows neither how text is read nor how it is generated: a Reader and a Responder do that.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from minka.chat.messages import Message
from minka.errors import ContextSizeError, MinkaError
from minka.terminal import tuning as tunings
from minka.terminal.answer import Answer, Responder, Stopper
from minka.terminal.conversation import Attachment, Conversation
from minka.terminal.files import MAX_ATTACHMENT, Transcript, load_conversation, read_text, save_conversation
from minka.terminal.output import Screen, context_use, timings_line
from minka.terminal.reader import PROMPT, Reader
from minka.terminal.slash import Order, help_text, read_order, unquoted
from minka.terminal.tuning import Spelling, Tuning
from minka.types import FinishReason, Progress

_SETTING = re.compile(r"(\S+?)(?:(?:\s*=\s*|\s+)(\S.*))?", re.DOTALL)
"""NAME, NAME VALUE or NAME=VALUE."""

LONG_PROMPT = 256
"""Tokens to compute before the first word, from which on the wait is explained."""


@dataclass(frozen=True, slots=True)
class Manners:
    """How the chat behaves: `single_turn` leaves after one answer, `show_timings` ends each with its speed."""

    single_turn: bool = False
    show_timings: bool = True


class _Leave(Exception):
    """The user leaves."""


class Chat:
    """One conversation with a model. `model` is the model's name, for saved conversations."""

    def __init__(
        self,
        responder: Responder,
        reader: Reader,
        screen: Screen,
        spelling: Spelling,
        tuning: Tuning,
        *,
        system: str | None = None,
        model: str = "",
        transcript: Transcript | None = None,
        manners: Manners | None = None,
    ) -> None:
        self.conversation = Conversation(system)
        self.tuning = tuning
        self._responder, self._reader, self._screen, self._spelling = responder, reader, screen, spelling
        self._model = model
        self._transcript = transcript or Transcript(None)
        self._manners = manners or Manners()
        self._draft = ""
        self._exit_code = 0
        self._orders: Mapping[str, Callable[[str], None]] = {
            "help": self._help,
            "regen": self._regen,
            "clear": self._clear,
            "system": self._system,
            "read": self._read,
            "set": self._set,
            "save": self._save,
            "load": self._load,
            "exit": self._exit,
        }

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, first: str = "") -> int:
        """Answer the `first` message, if there is one, then what the user types, until the end. The exit code."""
        before = signal.signal(signal.SIGTERM, _terminate)
        try:
            if first:
                self._screen.show(PROMPT + first)
                self._guarded(partial(self._message, first))
            self._loop()
        except _Leave:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)
        return self._exit_code

    def _loop(self) -> None:
        warned = False
        while True:
            try:
                draft, self._draft = self._draft, ""
                text = self._reader.read(draft)
                warned = False
                self._guarded(partial(self._take, text))
            except EOFError:
                self._screen.end_answer()
                return
            except KeyboardInterrupt:
                if warned:
                    self._exit_code = 130
                    return
                warned = True
                self._screen.note("(Ctrl-C again leaves, as does Ctrl-D)")

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do it; an error is shown and nothing else."""
        try:
            act()
        except MinkaError as error:
            self._screen.error(str(error))

    def _take(self, text: str) -> None:
        order = read_order(text)
        if order is not None:
            self._do(order)
        elif text.strip():
            self._message(text)

    def _do(self, order: Order) -> None:
        self._orders[order.name](order.argument)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _message(self, text: str) -> None:
        asked = self.conversation.asked(text)
        if not self._answer(asked, asked.turns[-1].text()):
            self._draft = text
        if self._manners.single_turn:
            raise _Leave

    def _answer(self, asked: Conversation, question: str) -> bool:
        """Have it answered. Without any answer the conversation stays as it was, and the result is False."""
        with Stopper() as stopper, self._reader.hushed():
            try:
                answer = self._responder.answer(asked.messages, self.tuning, self._screen.answer, stopper, self._watch)
            except MinkaError as error:
                self._fail(error)
                return False
            finally:
                self._screen.end_answer()
            is_answered = bool(answer.text) or answer.reason is not None
            if is_answered:
                self.conversation = asked.answered(answer.text)
            self._close(answer, is_answered=is_answered)
            if is_answered:
                self._note_down(question, answer.text)
        if answer.signal == signal.SIGTERM:
            self._exit_code = answer.exit_code
            raise _Leave
        return is_answered

    def _note_down(self, question: str, answer: str) -> None:
        try:
            self._transcript.add(question, answer)
        except MinkaError as error:
            self._exit_code = error.exit_code
            self._screen.error(str(error))

    def _fail(self, error: MinkaError) -> None:
        self._exit_code = error.exit_code if self._manners.single_turn else 0
        self._screen.error(self._advice(error) if isinstance(error, ContextSizeError) else str(error))
        self._screen.space()

    def _advice(self, error: ContextSizeError) -> str:
        return (
            f"the conversation has {error.n_prompt_tokens:,} tokens, but the context holds {error.n_ctx:,}: "
            f"shorten the message, {self._ways_out()}"
        )

    def _ways_out(self) -> str:
        larger = self._responder.n_ctx < self._responder.n_ctx_train
        restart = f", or start again with --ctx-size up to {self._responder.n_ctx_train}" if larger else ""
        return f"/clear to begin anew (/save FILE keeps it){restart}"

    def _close(self, answer: Answer, *, is_answered: bool) -> None:
        """What follows an answer: why it is cut, how fast it was, how full the context is."""
        if not is_answered:
            self._screen.note("[stopped before the answer began; the message was taken back]")
        elif answer.reason is None:
            self._screen.note("[stopped]")
        elif answer.is_full:
            self._screen.error(f"the context of {self._responder.n_ctx:,} tokens is full: {self._ways_out()}")
        elif answer.reason is FinishReason.LIMIT:
            self._screen.note(f"[cut by {self._limit(answer)}]")
        if self._manners.show_timings and is_answered:
            self._screen.note(timings_line(answer.timings, answer.n_past, self._responder.n_ctx))
        else:
            for use in context_use(answer.n_past, self._responder.n_ctx):
                self._screen.note(f"[ {use} ]")
        self._screen.space()

    def _limit(self, answer: Answer) -> str:
        generation = self.tuning.generation
        if 0 <= generation.n_predict <= answer.timings.predicted_n:
            return f"n_predict = {generation.n_predict}"
        return f"t_max_predict_ms = {generation.t_max_predict_ms}"

    def _watch(self, progress: Progress) -> None:
        if progress.processed < progress.total and progress.total - progress.cached > LONG_PROMPT:
            self._screen.status(f"reading the prompt: {progress.processed:,} of {progress.total:,} tokens")

    # -- commands ------------------------------------------------------------------------------------------------------

    def _help(self, _: str) -> None:
        self._screen.show(help_text(", ".join(tunings.names())))

    def _regen(self, _: str) -> None:
        self._answer(self.conversation.reopened(), "")

    def _clear(self, _: str) -> None:
        self.conversation = self.conversation.cleared()
        self._screen.note("the conversation is empty")

    def _system(self, text: str) -> None:
        if text:
            system = unquoted(text) or None
            self.conversation = replace(self.conversation, system=system)
            self._screen.note("system message set" if system else "no system message any more")
        else:
            self._screen.show(self.conversation.system or "there is no system message")

    def _read(self, name: str) -> None:
        path = _path(name)
        text = read_text(path, "the file", limit=MAX_ATTACHMENT)
        attached = (*self.conversation.attached, Attachment(path.name, text))
        self.conversation = replace(self.conversation, attached=attached)
        self._screen.note(f"{path.name} ({len(text):,} characters) goes out with the next message")

    def _set(self, argument: str) -> None:
        match = _SETTING.fullmatch(argument)
        if match is None:
            found = [
                f"{name} = {value or 'empty'} (default: {usual or 'empty'})"
                for name, value, usual in self.tuning.differences(self._spelling)
            ]
            self._screen.show("\n".join(found) or "every parameter has its default")
            return
        name, value = match.groups()
        if value is not None:
            self.tuning = self.tuning.changed(name, unquoted(value), self._spelling)
        self._screen.note(self.tuning.describe(name, self._spelling))

    def _save(self, name: str) -> None:
        path = _path(name)
        messages = self.conversation.messages
        save_conversation(path, messages, self._model)
        self._screen.note(f"saved {_count(messages)} to {path}")

    def _load(self, name: str) -> None:
        path = _path(name)
        messages = load_conversation(path)
        self.conversation = Conversation.of(messages)
        rest = "; the last one has no answer, /regen gets it" if self.conversation.is_unanswered else ""
        self._screen.note(f"loaded {_count(messages)} from {path}{rest}")

    def _exit(self, _: str) -> None:
        raise _Leave


def _count(messages: tuple[Message, ...]) -> str:
    return "1 message" if len(messages) == 1 else f"{len(messages)} messages"


def _path(name: str) -> Path:
    return Path(unquoted(name)).expanduser()


def _terminate(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
