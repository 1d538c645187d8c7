"""OpenAI's Responses: `POST /v1/responses`, and counting the tokens of one. What is kept is read elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from minka.errors import MinkaError
from minka.protocols.answer import Answer
from minka.protocols.body import JsonObject, new_id
from minka.protocols.chat_body import chat_tokens
from minka.protocols.chat_request import ChatRequest, chat_request
from minka.protocols.exchange import named_frame
from minka.protocols.measures import logprob_object, progress_members, timings_object
from minka.protocols.responses_events import Output
from minka.protocols.responses_request import TAKEN, Asked, decode_request
from minka.protocols.responses_store import Kept
from minka.protocols.route import Completion, Computed
from minka.protocols.schema import COUNT, FLAG, NULL, TEXT, Field, either, listed, record, ref, word
from minka.protocols.served import Served
from minka.types import Event, Failed, Finished, FinishReason, Progress, Started, Timings, Token

_CODES: Mapping[int, str] = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""OpenAI's codes of what made a response fail; anything else is an error of the server."""


def decode(body: JsonObject, served: Served) -> ResponseExchange:
    """A request of one response."""
    asked, id = decode_request(body, served.responses), new_id("resp_")
    return ResponseExchange(id, asked, _fitted(asked, served, id), served)


def count_input_tokens(body: JsonObject, served: Served) -> object:
    """The number of tokens of a request's prompt."""
    asked = decode_request(body, served.responses)
    return {"input_tokens": len(chat_tokens(asked.chat, served)), "object": "response.input_tokens"}


def _fitted(asked: Asked, served: Served, id: str) -> ChatRequest:
    """The chat request; with `truncation: auto` the longest end of the conversation that fits."""
    request = chat_request(asked.chat, served, id, n_top=asked.n_top)
    if not asked.cuts or len(request.job.prompt) <= _room(request, served):
        return request
    messages = asked.chat["messages"]
    assert isinstance(messages, list), "made from the items"
    n_system = int(messages[0]["role"] == "system")
    cuts = [at for at, message in enumerate(messages) if at > n_system and message["role"] == "user"]
    while cuts:
        middle = len(cuts) // 2
        chat = {**asked.chat, "messages": [*messages[:n_system], *messages[cuts[middle] :]]}
        shorter = chat_request(chat, served, id, n_top=asked.n_top)
        if len(shorter.job.prompt) <= _room(shorter, served):
            request, cuts = shorter, cuts[:middle]
        else:
            cuts = cuts[middle + 1 :]
    return request


def _room(request: ChatRequest, served: Served) -> int:
    """The longest prompt that leaves the answer a place, at most a quarter of the context."""
    wanted = request.job.n_predict if request.job.n_predict >= 0 else served.n_ctx
    return served.n_ctx - min(wanted, served.n_ctx // 4)


class ResponseExchange:
    """Implements `exchange.Lasting`. A response that is to be kept is kept before its last event is told."""

    def __init__(self, id: str, asked: Asked, request: ChatRequest, served: Served) -> None:
        self.id, self.jobs, self.background = id, (request.job,), asked.background
        generation = request.options.generation
        self.stream, self.ping_interval = generation.stream, generation.sse_ping_interval
        self._timed, self._n_top = generation.timings_per_token, request.options.n_top
        self._telemetry = self._timed or generation.return_progress
        self._asked, self._shelf = asked, served.responses
        self._answer = Answer(request.turn, request.job, 0)
        self._output = Output(asked.style, asked.tools)
        self._n_events = 0
        self._base: dict[str, object] = {
            "id": id,
            "object": "response",
            "created_at": int(time.time()),
            "model": served.model.name,
            "temperature": request.options.sampling.temperature,
            "top_p": request.options.sampling.top_p,
            **asked.echo,
        }
        self._state: dict[str, object] = {"status": "queued" if asked.background else "in_progress"}
        if asked.background:
            self._keep()

    # -- the response object -------------------------------------------------------------------------------------------

    def _object(self) -> dict[str, object]:
        nothing = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
        return {**self._base, **nothing, "output": self._output.items(), **self._state}

    def accepted(self) -> object:
        """See Lasting."""
        return self._object()

    def _keep(self) -> None:
        if self._asked.store and self._shelf is not None:
            self._shelf.save(Kept(self.id, self._object(), self._asked.items, self._asked.previous))

    def _begin(self) -> None:
        self._state = {"status": "in_progress"}
        if self.background:
            self._keep()

    def _end(self, end: Finished) -> None:
        """The state after the last event; a token limit leaves the response incomplete."""
        cut = end.reason is FinishReason.LIMIT
        self._state = {
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": self._usage(end.timings),
        }
        self._keep()

    def broken(self, error: MinkaError | None) -> None:
        """See Lasting."""
        told = {"code": _CODES.get(error.status, "server_error"), "message": error.message} if error else None
        self._state = {"status": "failed" if error else "cancelled", "error": told}
        self._keep()

    def _usage(self, timings: Timings) -> dict[str, object]:
        n_prompt = timings.cache_n + timings.prompt_n
        return {
            "input_tokens": n_prompt,
            "input_tokens_details": {"cached_tokens": timings.cache_n, "cache_write_tokens": 0},
            "output_tokens": timings.predicted_n,
            "output_tokens_details": {"reasoning_tokens": self._answer.n_reasoning_tokens},
            "total_tokens": n_prompt + timings.predicted_n,
        }

    # -- whole ---------------------------------------------------------------------------------------------------------

    def add(self, event: Event) -> None:
        """See Exchange."""
        if isinstance(event, Started) and self.background:
            self._begin()
        for _ in self._made(event, whole=True):
            pass  # what a stream would tell

    def whole(self) -> object:
        """See Exchange."""
        end = self._answer.transcript.ended
        for _ in self._output.stop(_status(end)):
            pass
        self._end(end)
        return self._object()

    def _made(self, event: Event, *, whole: bool = False) -> Iterator[dict[str, object]]:
        deltas = self._answer.add(event)
        return self._output.add(deltas, self._logprobs(event), whole=whole)

    def _logprobs(self, event: Event) -> list[object]:
        if not isinstance(event, Token) or event.logprobs is None or self._asked.n_top is None:
            return []
        return [logprob_object(replace(event.logprobs, top=event.logprobs.top[: self._n_top]))]

    # -- stream --------------------------------------------------------------------------------------------------------

    def frames(self, event: Event) -> Iterable[bytes]:
        """See Exchange."""
        match event:
            case Started() if not self._n_events:
                self._begin()
                yield self._about("created")
                yield self._about("in_progress")
            case Progress():
                yield self._about("in_progress", progress_members(event, timings=self._timed))
            case Token():
                yield from self._tokens(event)
            case Finished():
                yield from map(self._frame, self._made(event))
                yield from map(self._frame, self._output.stop(_status(event)))
                self._end(event)
                yield self._about(self._last_event(), {"timings": timings_object(event.timings)})
            case Failed():
                error = event.error
                assert isinstance(error, MinkaError), "events hold no other errors"
                self.broken(error)
                yield self._about("failed")
            case _:
                pass

    def _last_event(self) -> str:
        """Who asks for llama-server's telemetry waits for the only end that llama-server has."""
        return "completed" if self._telemetry else str(self._state["status"])

    def _tokens(self, event: Token) -> Iterator[bytes]:
        """The frames of a token; the timings, if wanted, stand in the last one."""
        made = list(self._made(event))
        if made and self._timed:
            made[-1]["timings"] = timings_object(event.timings)
        yield from map(self._frame, made)

    def _about(self, what: str, more: Mapping[str, object] | None = None) -> bytes:
        return self._frame({"type": f"response.{what}", "response": self._object(), **(more or {})})

    def _frame(self, event: dict[str, object]) -> bytes:
        event["sequence_number"] = self._n_events
        self._n_events += 1
        return named_frame(str(event["type"]), event)

    def last_frames(self) -> Iterable[bytes]:
        """See Exchange: everything has been told."""
        return ()


def _status(end: Finished) -> str:
    return "incomplete" if end.reason is FinishReason.LIMIT else "completed"


_ITEMS = listed({"type": "object"})
_FIELDS = (
    Field("input", either(TEXT, _ITEMS), "a text, or the items of a conversation", required=True),
    Field("instructions", TEXT, "the system prompt; that of a response before is not taken over"),
    Field("previous_response_id", TEXT, "a kept response to go on from"),
    Field("tools", _ITEMS, "functions, free-form tools (custom), and namespaces of functions"),
    Field(
        "tool_choice",
        either(word("none", "auto", "required"), {"type": "object"}),
        "whether the model may, must not or must call a tool, or which",
    ),
    Field("parallel_tool_calls", FLAG, "let one answer have several calls; true if not given"),
    Field(
        "text", record(format={"type": "object"}, verbosity=TEXT), "format: the JSON schema that the text must match"
    ),
    Field("reasoning", record(effort=TEXT, summary=TEXT), "how much to reason, and whether to tell it as a summary"),
    Field("truncation", word("auto", "disabled"), "auto leaves out the beginning of what is too long"),
)
_MORE = (
    Field("max_output_tokens", {"type": "integer", "minimum": 1}, "the most tokens to generate"),
    Field("include", listed(TEXT), "what to add: reasoning.encrypted_content, message.output_text.logprobs"),
    Field("top_logprobs", {"type": "integer", "minimum": 0}, "so many of the most likely alternatives of each token"),
    Field("store", FLAG, "keep the response, so that another can go on from it; true if not given"),
    Field("background", FLAG, "answer at once; the response is asked for later"),
)
_EXAMPLE = {"input": "Name three fruits."}
RESPONSE = record(
    id=TEXT,
    object=word("response"),
    created_at=COUNT,
    completed_at=either(COUNT, NULL),
    status=word("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
    model=TEXT,
    output=_ITEMS,
    usage=either(
        record(
            input_tokens=COUNT,
            input_tokens_details=record(cached_tokens=COUNT),
            output_tokens=COUNT,
            output_tokens_details=record(reasoning_tokens=COUNT),
            total_tokens=COUNT,
        ),
        NULL,
    ),
    error=either(record(code=TEXT, message=TEXT), NULL),
    incomplete_details=either(record(reason=TEXT), NULL),
    previous_response_id=either(TEXT, NULL),
)
FORGOTTEN = record(id=TEXT, object=word("response"), deleted=FLAG)
ITEMS = record(object=word("list"), data=_ITEMS, first_id=TEXT, last_id=TEXT, has_more=FLAG)
FOLLOW_QUERY = (
    ("stream", "true: the events of a response that is made in the background with stream"),
    ("starting_after", "only the events behind this number"),
)
ITEMS_QUERY = (("order", "asc or desc"), ("limit", "1 to 100, 20 if not given"), ("after", "the item to go on behind"))
STREAMS = listed(record(conversation_id=TEXT, is_done=FLAG, total_bytes=COUNT, started_at=COUNT, completed_at=COUNT))
LOOKUP_FIELDS = (Field("conversation_ids", listed(TEXT), "values of the header X-Conversation-Id", required=True),)
"""Shapes of what is served from what is kept."""

ROUTES = (
    Completion(
        ("/v1/responses", "/responses"),
        decode,
        "Make a response (OpenAI)",
        fields=(*_FIELDS, *_MORE),
        example=_EXAMPLE,
        result=RESPONSE,
        chunk=record(
            type=TEXT,
            sequence_number=COUNT,
            response=RESPONSE,
            item_id=TEXT,
            output_index=COUNT,
            content_index=COUNT,
            delta=TEXT,
            prompt_progress=ref("Progress"),
            timings=ref("Timings"),
        ),
        aside=TAKEN,
    ),
    Computed(
        ("/v1/responses/input_tokens", "/responses/input_tokens"),
        count_input_tokens,
        "The number of prompt tokens of a response",
        fields=_FIELDS,
        example=_EXAMPLE,
        result=record(input_tokens=COUNT, object=word("response.input_tokens")),
    ),
)
