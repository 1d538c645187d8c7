"""Embeddings in the engine's thread: requests that wait, and one computation for all of them between two steps.

Only the engine's thread calls it, but for a reply's `cancel`, which takes a request back. Knows no libllama.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

from minka.engine.embed_plan import MIN_PART, Ask, Grant, Limits, Text, plan
from minka.engine.reply import bug, refuse
from minka.errors import DeadlineError, MinkaError, NativeError, RequestError
from minka.native.embeddings import EmbeddingBackend, Part
from minka.types import Counters, EmbedJob, Vectors

log = logging.getLogger("minka.engine")

UNMEASURED = 64
"""Tokens of a computation beside running streams while no speed was measured yet."""
LEAST_SHARE = 0.1
"""Share of the longest pause that a computation may always take: prompts must not keep embeddings waiting for ever."""
_NEW = 0.25
"""Weight of a new measurement in the running mean."""


class Embedding:
    """The requests of one backend. `max_gap` is the longest pause of a running stream, in seconds."""

    def __init__(
        self, backend: EmbeddingBackend, *, max_gap: float = 0.2, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._backend = backend
        self._max_gap = max_gap
        self._clock = clock
        self._asks: list[Ask] = []
        self._free = list(range(backend.n_seq_max))
        self._begun: dict[int, Text] = {}
        """Texts in work by their sequences."""
        self._per_token = 0.0
        """Seconds of a token, a running mean; 0 is unknown."""

    def __len__(self) -> int:
        """Requests that are not answered."""
        return len(self._asks)

    def warm_up(self) -> None:
        """Make the first request as fast as the others."""
        self._backend.warm_up()

    def check(self, job: EmbedJob, n_vocab: int) -> None:
        """Raise RequestError for a job that can never run. From any thread."""
        if not job.inputs:
            raise RequestError("there is no text to embed", param="input")
        for index, tokens in enumerate(job.inputs):
            where = f"text {index}"
            if not tokens:
                raise RequestError(f"{where} has no tokens", param="input")
            if len(tokens) > (limit := self._backend.n_input_max):
                raise RequestError(
                    f"{where} is too large to process: it has {len(tokens)} tokens, at most {limit} can "
                    "be embedded (the model's own limit, or --ctx-size if that is less); send it in parts",
                    param="input",
                )
            if bad := next((token for token in tokens if not 0 <= token < n_vocab), None):
                raise RequestError(
                    f"{where}: token id {bad} is outside the vocabulary (0 to {n_vocab - 1})", param="input"
                )

    def put(self, ask: Ask) -> None:
        """Add a request. Its reply gets a text's vectors in the place of the text, or the error."""
        self._asks.append(ask)

    def step(self, counters: Counters, step_seconds: float = -1.0, stride: int = 1) -> bool:
        """Do one computation, and answer what is complete. False if there was nothing to compute.

        `step_seconds`: how long the next step of streams that are running may take, negative if none is; `stride`: a
        stream waits for so many steps.
        """
        self._drop_ended()
        began = self._clock()
        limits = Limits(self._budget(step_seconds, stride), len(self._free), self._room(), self._backend.splits)
        grants = plan(self._asks, tuple(self._begun.values()), limits, began)
        if not grants:
            return False
        try:
            vectors = self._compute(grants)
        except NativeError as error:
            log.warning("an embedding failed: %s", error)
            self._fail(grants, error)
            return True
        except Exception as error:
            log.exception("an embedding failed")
            self._fail(grants, bug(error))
            return True
        n_tokens = sum(grant.n for grant in grants)
        self._observe(counters, n_tokens, len(grants), self._clock() - began)
        for grant, own in zip(grants, vectors, strict=True):
            self._advance(grant, own)
        self._answer()
        return True

    def _budget(self, step_seconds: float, stride: int) -> int:
        if step_seconds < 0:
            return self._backend.n_batch
        if not self._per_token:
            return min(UNMEASURED, self._backend.n_batch)
        gap = self._max_gap / stride
        seconds = max(gap - step_seconds, LEAST_SHARE * gap)
        return min(max(MIN_PART, int(seconds / self._per_token)), self._backend.n_batch)

    def _room(self) -> int:
        """Cells that no text in work needs; as many as the first text needs, if none is in work."""
        if not self._begun and self._asks:
            longest = max(ask.longest for ask in self._asks)
            if longest > self._backend.n_cells:
                self._backend.grow(longest)
        return self._backend.n_cells - sum(len(text.tokens) for text in self._begun.values())

    def _compute(self, grants: list[Grant]) -> list[Vectors | None]:
        parts = []
        for grant in grants:
            text = grant.text
            if text.seq < 0:
                text.seq = self._free.pop()
                self._begun[text.seq] = text
            tokens = text.tokens[text.n_done : text.n_done + grant.n]
            parts.append(Part(text.seq, tokens, text.n_done, grant.is_last))
        return self._backend.compute(parts)

    def _observe(self, counters: Counters, n_tokens: int, n_texts: int, seconds: float) -> None:
        new = seconds / n_tokens
        self._per_token = (1 - _NEW) * self._per_token + _NEW * new if self._per_token else new
        counters.prompt_tokens += n_tokens
        counters.prompt_seconds += seconds
        counters.decode_calls += 1
        counters.busy_slots += n_texts

    def _advance(self, grant: Grant, vectors: Vectors | None) -> None:
        text, ask = grant.text, grant.text.ask
        text.n_done += grant.n
        if vectors is not None:
            ask.vectors[text.index] = vectors
            ask.open.remove(text)
            self._release(text)

    def _release(self, text: Text) -> None:
        del self._begun[text.seq]
        self._free.append(text.seq)
        text.seq = -1

    def _answer(self) -> None:
        for ask in [ask for ask in self._asks if not ask.open]:
            self._asks.remove(ask)
            if ask.reply.set_running_or_notify_cancel():
                ask.reply.set_result(tuple(vectors for vectors in ask.vectors if vectors is not None))

    # -- ends --------------------------------------------------------------------------------------------------------

    def _drop_ended(self) -> None:
        """Let go of requests that were taken back or whose time is over."""
        now = self._clock()
        for ask in list(self._asks):
            if ask.reply.cancelled() or ask.is_late(now):
                late = DeadlineError(f"the request's time of {ask.job.timeout_ms} ms was over before it was embedded")
                self._end(ask, late)

    def _end(self, ask: Ask, error: MinkaError) -> None:
        self._asks.remove(ask)
        refuse(ask.reply, error)
        self._forget([text for text in self._begun.values() if text.ask is ask])

    def _forget(self, texts: Sequence[Text]) -> None:
        """Texts that were in work are not any more, and would have to begin again."""
        for text in texts:
            seq = text.seq
            self._release(text)
            text.n_done = 0
            self._backend.drop(seq)

    def _fail(self, grants: list[Grant], error: MinkaError) -> None:
        """The requests that took part fail; whatever else was in work begins again."""
        texts = list(self._begun.values())
        for ask in {id(grant.text.ask): grant.text.ask for grant in grants}.values():
            self._asks.remove(ask)
            refuse(ask.reply, error)
        self._forget(texts)

    def abandon(self, error: MinkaError) -> None:
        """Fail all requests: the engine stops, or met a bug."""
        asks, self._asks = self._asks, []
        for ask in asks:
            refuse(ask.reply, error)
        self._forget(list(self._begun.values()))

    def close(self) -> None:
        """Free the backend."""
        self._backend.close()
