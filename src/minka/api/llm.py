"""A model for programs that wait: many prompts in, their texts out, in order.

All prompts of a call go through the engine together (continuous batching); a bounded number of them is in it at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from queue import SimpleQueue
from types import TracebackType
from typing import Self, Unpack, cast

from minka.api import request
from minka.api.embed import Texts
from minka.api.model import LoadedModel
from minka.api.outputs import EmbeddingOutput, RequestOutput
from minka.api.params import SamplingParams
from minka.api.progress import progress_bar
from minka.api.request import ChatFields, Message, Prompt, Request
from minka.engine.engine import Engine
from minka.errors import MinkaError, RequestError, UnavailableError
from minka.types import Cancelled, End, Event, Failed, Finished, Vectors

_EMBED_AHEAD = 2
"""Jobs of texts that wait while one is computed."""

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM(LoadedModel):
    """A model in this process. Its methods may be called from several threads at once.

    As a context manager it closes itself.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, progress: bool | None = None
    ) -> list[RequestOutput]:
        """Complete one or many prompts; the outputs are in their order.

        A prompt is a text or its token ids. `params` are for all prompts, or one for each. `progress`: show a bar, None
        for on a terminal. All prompts are checked before the first one is computed. Raises RequestError or
        ContextSizeError for a prompt or a parameter that cannot be, with a note that tells which prompt it was, and
        the error of a prompt that fails; the others are cancelled then.
        """
        many = many_prompts(prompts)
        made = []
        for index, (prompt, wanted) in enumerate(zip(many, _each(params, len(many)), strict=True)):
            with _telling(index):
                made.append(request.completion(prompt, wanted, self._served))
        return self._run(made, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        progress: bool | None = None,
        **fields: Unpack[ChatFields],
    ) -> list[RequestOutput]:
        """Answer one conversation or many; see `generate`. Messages are OpenAI's: `{"role": ..., "content": ...}`.

        `fields` are further fields of `POST /v1/chat/completions`. An output's `message` is what the assistant says.
        """
        many = _conversations(messages)
        made = []
        for index, (conversation, wanted) in enumerate(zip(many, _each(params, len(many)), strict=True)):
            with _telling(index):
                made.append(request.chat(conversation, wanted, self._served, fields))
        return self._run(made, progress)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, dimensions: int | None = None, progress: bool | None = None
    ) -> list[EmbeddingOutput]:
        """The vectors of one or many texts, in their order, normalised as `embd_normalize` says (2: Euclidean).

        A text may be its token ids. `dimensions`: so many of each vector's numbers. Raises NotSupportedError for a
        model that makes none, and RequestError for a text that is empty or too long.
        """
        many = many_prompts(prompts)
        texts = Texts(many, self._served, dimensions)
        vectors: list[Vectors] = []
        orders = deque[Future[tuple[Vectors, ...]]]()
        try:
            with progress_bar(len(many), shown=progress) as advance:
                for job in (*texts.jobs(), None):
                    if job is not None:
                        orders.append(self._runtime.engine.embed(job))
                    while len(orders) > (_EMBED_AHEAD if job is not None else 0):
                        vectors += orders[0].result()
                        advance(len(vectors))
                        orders.popleft()
        finally:
            for order in orders:
                order.cancel()
        return texts.outputs(vectors)

    def _run(self, requests: Sequence[Request], progress: bool | None) -> list[RequestOutput]:
        outputs: dict[int, RequestOutput] = {}
        # So many wait that a slot which gets free finds a job, whatever this thread does meanwhile.
        places = _completed(self._runtime.engine, requests, 2 * self._served.n_slots)
        with closing(places), progress_bar(len(requests), shown=progress) as advance:
            for place in places:
                outputs[place] = requests[place].output()
                advance(len(outputs))
        return [outputs[place] for place in range(len(requests))]


class _Pile:
    """An inbox for the events of many jobs, taken a step at a time."""

    def __init__(self) -> None:
        self._steps: SimpleQueue[Sequence[Event]] = SimpleQueue()

    def deliver(self, events: Sequence[Event]) -> None:
        """See Inbox."""
        self._steps.put(events)

    def take(self) -> Sequence[Event]:
        """The events of the next step; waits for them."""
        return self._steps.get()


def _completed(engine: Engine, requests: Sequence[Request], size: int) -> Generator[int, None, None]:
    """Run the requests, about `size` of their jobs at a time, and yield the place of each that is complete.

    However it is left, no job stays in the engine.
    """
    pile, waiting = _Pile(), iter(enumerate(requests))
    running: dict[str, int] = {}
    try:
        while True:
            while len(running) < size and (following := next(waiting, None)) is not None:
                place, one = following
                for job in one.jobs:
                    running[job.id] = place
                    with _telling(place):
                        engine.submit(job, pile)
            if not running:
                return
            for event in pile.take():
                place = running[event.id]
                if isinstance(event, End):
                    del running[event.id]
                    with _telling(place):
                        _raise_unless_finished(event)
                requests[place].add(event)
                if isinstance(event, Finished) and requests[place].complete:
                    yield place
    finally:
        for id in running:
            engine.cancel(id)


def _raise_unless_finished(event: End) -> None:
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, Cancelled):
        raise UnavailableError("the job was cancelled")


@contextmanager
def _telling(place: int) -> Iterator[None]:
    """Errors get a note that tells which prompt they are of."""
    try:
        yield
    except MinkaError as error:
        error.add_note(f"this is about prompt {place} (counted from 0)")
        raise


def many_prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """All prompts of a call. A list whose first item is a number is one prompt."""
    if not isinstance(prompts, Sequence):
        raise RequestError(f"prompts must be texts or token ids, but are {type(prompts).__name__}", param="prompt")
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [cast("Prompt", prompts)]
    if (bad := next((item for item in prompts if not isinstance(item, Sequence)), None)) is not None:
        raise RequestError(f"a prompt must be a text or token ids, but one is {bad!r}", param="prompt")
    return cast("Sequence[Prompt]", prompts)


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> Sequence[Sequence[Message]]:
    """All conversations of a call. A list whose first item is a message is one conversation."""
    if messages and isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]
    return cast("Sequence[Sequence[Message]]", messages)


def _each(params: Params, n: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * n
    if len(params) != n:
        raise RequestError(f"there are {n} prompts, but params for {len(params)}", param="params")
    return params
