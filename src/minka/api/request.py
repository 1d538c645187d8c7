"""One prompt under way: from a caller's words to jobs, and from their events to outputs.

The words go through the very routes of the server (`POST /completion`, `POST /v1/chat/completions`), so that both take
and mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from minka.api.outputs import CompletionOutput, RequestOutput
from minka.api.params import SamplingParams
from minka.errors import ContextSizeError
from minka.protocols import native, openai_chat
from minka.protocols.exchange import Exchange
from minka.protocols.native import shown
from minka.protocols.served import Served
from minka.protocols.transcript import Transcript, Transcripts
from minka.types import Event, Job, TokenLogprobs

Prompt = str | Sequence[int]
Message = Mapping[str, object]


class ChatFields(TypedDict, total=False):
    """Fields of a chat request beside its messages and SamplingParams; see `POST /v1/chat/completions`."""

    chat_template_kwargs: Mapping[str, object]
    add_generation_prompt: bool
    continue_final_message: bool | str
    tools: Sequence[Mapping[str, object]]
    tool_choice: str | Mapping[str, object]
    parallel_tool_calls: bool
    response_format: Mapping[str, object]


class Request:
    """A prompt's jobs and what came of them so far. Raises RequestError or ContextSizeError when it is made."""

    def __init__(
        self, exchange: Exchange, served: Served, params: SamplingParams, *, prompt: str | None, is_chat: bool
    ) -> None:
        self._exchange, self._served, self._prompt, self._is_chat = exchange, served, prompt, is_chat
        self._n_top = params.logprobs
        self._transcripts = Transcripts(exchange.jobs)
        self._told = [0] * len(exchange.jobs)
        """Pieces of each text that an output told of already."""
        self._texts = [""] * len(exchange.jobs)
        n_prompt = len(exchange.jobs[0].prompt)
        if n_prompt >= served.n_ctx:
            raise ContextSizeError(n_prompt, served.n_ctx)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What the engine has to do."""
        return self._exchange.jobs

    @property
    def complete(self) -> bool:
        """Whether all jobs have ended."""
        return self._transcripts.complete

    def add(self, event: Event) -> None:
        """Take an event of one of the jobs."""
        self._transcripts.add(event)
        if self._is_chat:
            self._exchange.add(event)

    def output(self) -> RequestOutput:
        """What there is now. Deltas begin where the output before ended."""
        outputs = tuple(self._completion(transcript) for transcript in self._transcripts.all)
        if self._is_chat and self.complete:
            outputs = tuple(
                replace(output, message=message)
                for output, message in zip(outputs, _messages(self._exchange.whole()), strict=True)
            )
        return RequestOutput(self._prompt, self.jobs[0].prompt, outputs, self.complete)

    def _completion(self, transcript: Transcript) -> CompletionOutput:
        index, end = transcript.index, transcript.end
        delta = "".join(transcript.pieces[self._told[index] :])
        self._told[index] = len(transcript.pieces)
        self._texts[index] += delta
        return CompletionOutput(
            index=index,
            text=self._texts[index],
            token_ids=tuple(transcript.tokens),
            delta=delta,
            finish_reason=transcript.finish_reason if end else None,
            stop_reason=end.stop_word or None if end else None,
            logprobs=self._logprobs(transcript) if self._n_top is not None else None,
            timings=end.timings if end else None,
        )

    def _logprobs(self, transcript: Transcript) -> tuple[TokenLogprobs, ...]:
        entries = shown(transcript, self._served) if transcript.end else transcript.logprobs
        return tuple(replace(entry, top=entry.top[: self._n_top]) for entry in entries)


def _messages(answer: object) -> list[Message]:
    assert isinstance(answer, dict), "a chat's answer is an object"
    return [choice["message"] for choice in answer["choices"]]


def completion(prompt: Prompt, params: SamplingParams, served: Served) -> Request:
    """A request to go on from a prompt: text, in which special tokens are parsed, or token ids."""
    body = params.request_fields()
    if params.logprobs is not None:
        body["n_probs"] = max(params.logprobs, 1)
    text = prompt if isinstance(prompt, str) else None
    body["prompt"] = text if text is not None else list(prompt)
    return Request(native.decode(body, served), served, params, prompt=text, is_chat=False)


def chat(messages: Sequence[Message], params: SamplingParams, served: Served, fields: ChatFields) -> Request:
    """A request to answer a conversation."""
    body = params.request_fields() | dict(fields) | {"messages": list(messages)}
    if params.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": params.logprobs}
    exchange = openai_chat.decode(body, served)
    text = served.tokenizer.detokenize(exchange.jobs[0].prompt, special=True).decode("utf-8", "replace")
    return Request(exchange, served, params, prompt=text, is_chat=True)
