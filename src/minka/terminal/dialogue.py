"""A text that a model and a user write in turns, without a chat template: llama-completion's interactive mode.

The model writes until a reverse prompt, its end, its limit or Ctrl-C; then a line of the user is appended, between a
prefix and a suffix, and the model goes on. Knows neither how lines are read nor what the text is about.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minka.engine.shift import context_shift
from minka.terminal.answer import Stopper
from minka.terminal.output import Output
from minka.terminal.reader import Reader
from minka.terminal.writer import Writer, Written
from minka.types import FinishReason, Tokenizer

_TYPED, _RESET = "\x1b[1m\x1b[32m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Frame:
    """What is put around each line of the user. `bos`: the BOS token goes before it."""

    prefix: str = ""
    suffix: str = ""
    bos: bool = False


class Dialogue:
    """One text. `reverse` are the strings that hand over to the user; what the user types is read through `typed`, and
    with `echoes`, where no terminal shows it, is written out.

    `n_shift` is the context's size if a text that fills it drops its middle, 0 if it does not.
    """

    def __init__(
        self,
        writer: Writer,
        tokenizer: Tokenizer,
        reader: Reader,
        out: Output,
        *,
        frame: Frame,
        reverse: Sequence[str],
        typed: Callable[[str], str] = str,
        echoes: bool = False,
        colors: bool = False,
        n_shift: int = 0,
    ) -> None:
        self._writer, self._tokenizer, self._reader, self._out = writer, tokenizer, reader, out
        self._frame, self._reverse, self._typed, self._colors = frame, tuple(reverse), typed, colors
        self._echoes, self._n_shift = echoes, n_shift
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._exit_code = 0

    @property
    def text(self) -> str:
        """All that was written since the beginning, the user's lines included."""
        return "".join(self._texts)

    def run(self, tokens: Sequence[int], prompt: str, *, ask_first: bool) -> int:
        """Go on from a prompt until the user's lines end, or Ctrl-C is pressed where a line is typed. The exit code.

        `ask_first`: the user begins, as after a prompt that ends in a reverse prompt.
        """
        self._tokens = list(tokens)
        if self._writer.tuning.generation.n_keep < 0:
            self._writer.keep(len(tokens))
        is_users = ask_first or any(map(prompt.endswith, self._reverse))
        try:
            while True:
                if is_users:
                    self._ask()
                is_users = True
                if not self._write():
                    return self._exit_code
        except EOFError:
            return 0
        except KeyboardInterrupt:
            return 128 + signal.SIGINT

    def _write(self) -> bool:
        """Let the model write; False if the program is to end."""
        self._make_room()
        with Stopper() as stopper, self._reader.hushed():
            written = self._writer.write(self._writer.job(self._tokens), stopper)
        self._tokens += written.tokens
        self._texts.append(written.answer.text)
        self._hand_over(written)
        self._exit_code = written.answer.exit_code
        return written.answer.signal != signal.SIGTERM

    def _hand_over(self, written: Written) -> None:
        """The reverse prompt is a part of the text, whether the model wrote it or ended without one."""
        reason = written.answer.reason
        if reason is FinishReason.WORD:
            whole = self._writer.text(written.tokens)
            self._show(whole.removeprefix(written.answer.text))
        elif reason is FinishReason.EOS and self._reverse:
            self._append(self._reverse[0])
            self._show(self._reverse[0])

    def _ask(self) -> None:
        """Append what the user types. An empty line appends nothing: the model goes on."""
        frame = self._frame
        if frame.bos and self._tokenizer.bos >= 0:
            self._tokens.append(self._tokenizer.bos)
        self._show(frame.prefix)
        self._style(_TYPED)
        try:
            line = self._reader.read()
        finally:
            self._style(_RESET)
        if not line:
            return
        line = self._typed(line)
        self._append(frame.prefix)
        self._append(line, special=False)
        self._append(frame.suffix)
        self._show(f"{line}\n", seen=not self._echoes)
        self._show(frame.suffix)

    def _append(self, text: str, *, special: bool = True) -> None:
        """Names of control tokens in what a user types are no control tokens."""
        if text:
            self._tokens += self._tokenizer.tokenize(text, add_special=False, parse_special=special)

    def _show(self, text: str, *, seen: bool = False) -> None:
        """A part of the text, which is written unless it is on the screen already."""
        self._texts.append(text)
        if not seen:
            self._out.write(text)

    def _style(self, code: str) -> None:
        if self._colors:
            self._out.send(code)

    def _make_room(self) -> None:
        """Drop the middle of a text that has no room for another token, as the engine does while it generates."""
        while self._n_shift and len(self._tokens) >= self._n_shift:
            job = self._writer.job(self._tokens)
            shift = context_shift(job, len(self._tokens), self._n_shift, add_bos=self._tokenizer.add_bos)
            self._tokens = shift.apply(self._tokens)
