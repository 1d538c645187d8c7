"""A model for asyncio programs: one prompt a call, its text as it comes, many calls at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

from minka.api import request
from minka.api.embed import Texts
from minka.api.llm import many_prompts
from minka.api.model import LoadedModel
from minka.api.outputs import EmbeddingOutput, RequestOutput
from minka.api.params import SamplingParams
from minka.api.request import ChatFields, Message, Prompt, Request
from minka.engine.follow import follow
from minka.engine.inbox import LoopInbox
from minka.errors import UnavailableError
from minka.types import Cancelled, Started


class AsyncLLM(LoadedModel):
    """A model in this process. Calls that run at the same time are computed together.

    Making one blocks while the model is loaded: in a running loop, `await asyncio.to_thread(AsyncLLM, "model.gguf")`.
    As an async context manager it closes itself.
    """

    _inbox: LoopInbox | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[RequestOutput]:
        """Complete a prompt, a text or its token ids. Yields what there is whenever there is more of it.

        The last output is `finished`. Leaving the iteration cancels the work. Raises RequestError or ContextSizeError
        for a prompt or a parameter that cannot be.
        """
        return self._outputs(lambda: request.completion(prompt, params or SamplingParams(), self._served))

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **fields: Unpack[ChatFields]
    ) -> AsyncIterator[RequestOutput]:
        """Answer a conversation; see `generate` and `LLM.chat`."""
        return self._outputs(lambda: request.chat(messages, params or SamplingParams(), self._served, fields))

    async def embed(
        self, prompts: Prompt | Sequence[Prompt], *, dimensions: int | None = None
    ) -> list[EmbeddingOutput]:
        """The vectors of one or many texts, in their order; see `LLM.embed`. Cancelling takes the work back."""
        texts = await asyncio.to_thread(Texts, many_prompts(prompts), self._served, dimensions)
        orders = [asyncio.wrap_future(self._runtime.engine.embed(job)) for job in texts.jobs()]
        parts = await asyncio.gather(*orders)
        return await asyncio.to_thread(texts.outputs, [vector for part in parts for vector in part])

    async def _outputs(self, make: Callable[[], Request]) -> AsyncIterator[RequestOutput]:
        one = await asyncio.to_thread(make)
        async with aclosing(follow(self._runtime.engine, self._own_inbox(), one.jobs)) as steps:
            async for events in steps:
                for event in events:
                    if isinstance(event, Cancelled):
                        raise UnavailableError("the job was cancelled")
                    one.add(event)
                if not all(isinstance(event, Started) for event in events):
                    yield one.output()

    def _own_inbox(self) -> LoopInbox:
        """The inbox of the running loop."""
        loop, inbox = asyncio.get_running_loop(), self._inbox  # read once: other threads have loops of their own
        if inbox is None or inbox.loop is not loop:
            self._inbox = inbox = LoopInbox(loop)
        return inbox
