"""A prompt's state kept in a file, so that the next run of a command does not compute it again.

Files are llama-completion's (llama.cpp), and what is kept when is as there: the prompt, without its last token, before
anything is generated, and with `keep_all` the whole text at the end. Uses slot 0 of an engine that nobody else uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from minka.engine.control import SlotState
from minka.engine.engine import Engine
from minka.errors import RequestError, UsageError
from minka.native.session_file import Session, SessionFiles
from minka.terminal.answer import Stopper, run_job
from minka.types import Job

SLOT = 0


class PromptCache:
    """The file of one run. Without `writes` it is only read."""

    def __init__(self, engine: Engine, files: SessionFiles, path: Path, *, writes: bool, keep_all: bool) -> None:
        self._engine, self._files, self._path = engine, files, path
        self._writes, self._keep_all = writes, keep_all
        self._known: tuple[int, ...] = ()
        """Tokens of the file."""

    def load(self) -> tuple[int, ...]:
        """Put what the file holds into the slot; the tokens of its text, none if there is no file yet.

        Raises UsageError for a file that is no prompt cache, or does not fit the model or the context.
        """
        session = self._files.read(self._path)
        self._known = session.tokens
        if session.n_state:
            try:
                self._engine.restore_slot(SLOT, SlotState(session.tokens[: session.n_state], session.state)).result()
            except RequestError as error:
                raise UsageError(f"the prompt cache {self._path} does not fit this context: {error}") from error
        return session.tokens

    def prepare(self, job: Job, stopper: Stopper) -> Job:
        """The job as it has to run. Computes the prompt and writes the file, unless the file has all of it."""
        job = replace(job, id_slot=SLOT, cache_prompt=True)
        prompt = job.prompt
        if self._writes and len(prompt) > 1 and self._known[: len(prompt)] != prompt:
            ahead = replace(job, id=f"{job.id}-prompt", prompt=prompt[:-1], n_predict=0, constraint=None)
            if run_job(self._engine, ahead, lambda _: None, stopper).reason is not None:
                self._save(prompt)
        return job

    def finish(self, job: Job, generated: Sequence[int]) -> None:
        """Write the whole text, if that is wanted."""
        if self._writes and self._keep_all:
            self._save((*job.prompt, *generated))

    def _save(self, tokens: tuple[int, ...]) -> None:
        """Write what the slot holds of a text, and the token behind it if the text has one more."""
        held = self._engine.save_slot(SLOT).result()
        n = len(held.tokens)
        if n and held.tokens == tokens[:n]:
            self._files.write(self._path, Session(tokens[: n + 1], held.state, n))
        elif n:  # the context was shifted
            self._files.write(self._path, Session(held.tokens, held.state, n))
