"""Anthropic's Messages: `POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from minka.errors import MinkaError
from minka.protocols.answer import Answer
from minka.protocols.anthropic_events import Blocks
from minka.protocols.anthropic_request import TAKEN, Asked, decode_request
from minka.protocols.anthropic_threads import Thread, ThreadLostError, resumed
from minka.protocols.body import JsonObject, new_id
from minka.protocols.chat_body import chat_tokens
from minka.protocols.chat_request import ChatRequest, chat_request
from minka.protocols.exchange import Wire, named_frame
from minka.protocols.route import Completion, Computed
from minka.protocols.schema import COUNT, FLAG, NULL, TEXT, Field, either, listed, record, word
from minka.protocols.served import Served
from minka.types import Event, Finished, FinishReason, Started, Token

_PING = named_frame("ping", {"type": "ping"})
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's words for our statuses; other requests are wrong below 500, and our fault from there on."""


def _error_object(error: MinkaError, request_id: str) -> dict[str, object]:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    told: dict[str, object] = {"type": kind, "message": error.message}
    if isinstance(error, ThreadLostError):
        told["details"] = {"error_code": error.code}
    return {"type": "error", "error": told, "request_id": request_id}


def _error_frame(error: Mapping[str, object]) -> bytes:
    return named_frame("error", error)


ANTHROPIC = Wire(
    ping=_PING, error=_error_object, error_frame=_error_frame, statuses=((503, 529),), id_header="request-id"
)
"""How Anthropic's API speaks. 529 is its own status of a server that cannot take more now."""


def decode(body: JsonObject, served: Served) -> MessageExchange:
    """A request of one conversation."""
    body, thread = resumed(body, served.responses)
    asked, id = decode_request(body), new_id("msg_")
    return MessageExchange(id, asked, chat_request(asked.chat, served, id), served, thread)


def count_tokens(body: JsonObject, served: Served) -> object:
    """The number of tokens of a request's prompt, with its tools."""
    body, _ = resumed(body, served.responses)
    return {"input_tokens": len(chat_tokens(decode_request(body, counting=True).chat, served))}


class MessageExchange:
    """Implements `exchange.Exchange`."""

    def __init__(
        self, id: str, asked: Asked, request: ChatRequest, served: Served, thread: Thread | None = None
    ) -> None:
        self.jobs = (request.job,)
        generation = request.options.generation
        self.stream, self.ping_interval = generation.stream, generation.sse_ping_interval
        self._id, self._asked, self._model, self._thread = id, asked, served.model.name, thread
        self._answer = Answer(request.turn, request.job, 0, id_prefix="toolu_")
        self._blocks = Blocks(shown=asked.shows_thinking)
        self._shows_thinking = request.turn.format.reasoning is not None
        self._is_begun = False

    def add(self, event: Event) -> None:
        """See Exchange."""
        for _ in self._blocks.add(self._answer.add(event), whole=True):
            pass  # what a stream would tell

    def whole(self) -> object:
        """See Exchange."""
        for _ in self._blocks.stop():
            pass
        self._keep()
        end = self._answer.transcript.ended
        usage = self._usage(end.timings.cache_n + end.timings.prompt_n, end.timings.cache_n)
        return self._message(self._blocks.content(), usage | self._output()) | self._stop(end)

    def frames(self, event: Event) -> Iterable[bytes]:
        """See Exchange."""
        deltas = self._answer.add(event)
        match event:
            case Started() if not self._is_begun:
                self._is_begun = True
                usage = self._usage(event.n_prompt, event.n_cached) | {"output_tokens": 0}
                yield _frame({"type": "message_start", "message": self._message([], usage) | _UNSTOPPED})
            case Token() | Finished():
                yield from map(_frame, self._blocks.add(deltas))
            case _:
                pass
        if isinstance(event, Finished):
            yield from map(_frame, self._end(event))

    def _end(self, end: Finished) -> Iterator[dict[str, object]]:
        yield from self._blocks.stop()
        self._keep()
        timings = end.timings
        usage = self._usage(timings.cache_n + timings.prompt_n, timings.cache_n) | self._output()
        yield {"type": "message_delta", "delta": self._stop(end), "usage": usage}
        yield {"type": "message_stop"}

    def _keep(self) -> None:
        """A thread goes on from this message as soon as the client knows its end."""
        if self._thread is not None:
            self._thread.keep(self._id, self._blocks.content())

    def last_frames(self) -> Iterable[bytes]:
        """See Exchange: everything has been told."""
        return ()

    def _message(self, content: list[dict[str, object]], usage: dict[str, object]) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "usage": usage,
        }

    def _stop(self, end: Finished) -> dict[str, object]:
        """Why the message ended."""
        if end.reason is FinishReason.WORD and end.stop_word in self._asked.stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_word}
        return {"stop_reason": self._reason(end), "stop_sequence": None}

    def _reason(self, end: Finished) -> str:
        if end.reason is FinishReason.LIMIT:
            n_predict = self._answer.transcript.job.n_predict
            is_cut = end.timings.predicted_n >= n_predict >= 0 or end.timings.deadline
            return "max_tokens" if is_cut else "model_context_window_exceeded"
        return "tool_use" if self._answer.finish_reason == "tool_calls" else "end_turn"

    def _usage(self, n_prompt: int, n_cached: int) -> dict[str, object]:
        """The prompt's tokens, each counted once: read from the cache, written to it, and neither.

        All that is computed of a prompt is kept, except that the last token is computed each time. It is told as
        written only to a client that marks what is to be cached, since others take `input_tokens` for what was new.
        """
        n_new = n_prompt - n_cached
        n_written = max(n_new - 1, 0) if self._asked.marks_cache and self._answer.transcript.job.cache_prompt else 0
        return {
            "input_tokens": n_new - n_written,
            "cache_creation_input_tokens": n_written,
            "cache_read_input_tokens": n_cached,
        }

    def _output(self) -> dict[str, object]:
        usage: dict[str, object] = {"output_tokens": self._answer.transcript.ended.timings.predicted_n}
        if self._shows_thinking:
            usage["output_tokens_details"] = {"thinking_tokens": self._answer.n_reasoning_tokens}
        return usage


_UNSTOPPED = {"stop_reason": None, "stop_sequence": None}


def _frame(event: Mapping[str, object]) -> bytes:
    return named_frame(str(event["type"]), event)


_BLOCK = record(type=TEXT, text=TEXT, thinking=TEXT, id=TEXT, name=TEXT, input={"type": "object"})
_BLOCKS = either(TEXT, listed({"type": "object"}))
_FIELDS = (
    Field(
        "messages",
        listed(record(role=word("user", "assistant", "system"), content=_BLOCKS)),
        "the conversation, oldest message first; content is a text or blocks",
        required=True,
    ),
    Field("system", _BLOCKS, "the system prompt, a text or text blocks"),
    Field("tools", listed({"type": "object"}), "tools with a name, a description and an input_schema"),
    Field(
        "tool_choice",
        record(type=word("auto", "any", "tool", "none"), name=TEXT, disable_parallel_tool_use=FLAG),
        "whether the model may, must or must not call a tool, or which it must call",
    ),
    Field(
        "thinking",
        record(
            type=word("enabled", "adaptive", "between_tools", "disabled"),
            budget_tokens=COUNT,
            display=word("summarized", "omitted"),
        ),
        "whether and how long the model reasons; as its template has it if not given",
    ),
    Field(
        "output_config",
        record(effort=word("low", "medium", "high", "xhigh", "max"), format={"type": "object"}),
        "how much to reason, and the JSON schema that the text must match",
    ),
    Field(
        "thread", record(type=word("create", "continue"), previous_message_id=TEXT), "let the server keep the messages"
    ),
    Field("output_format", {"type": "object"}, "the older form of output_config.format"),
)
_MORE = (
    Field("max_tokens", {"type": "integer", "minimum": 0}, "the most tokens to generate", required=True),
    Field("stop_sequences", listed(TEXT), "texts that end the message"),
    Field("metadata", {"type": "object"}, "accepted without effect"),
    Field("service_tier", word("auto", "standard_only"), "accepted without effect"),
)
_EXAMPLE = {"messages": [{"role": "user", "content": "Name three fruits."}]}
_USAGE = record(
    input_tokens=COUNT, cache_creation_input_tokens=COUNT, cache_read_input_tokens=COUNT, output_tokens=COUNT
)
_STOP_REASON = word("end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded")
_MESSAGE = record(
    id=TEXT,
    type=word("message"),
    role=word("assistant"),
    model=TEXT,
    content=listed(_BLOCK),
    usage=_USAGE,
    stop_reason=either(_STOP_REASON, NULL),
    stop_sequence=either(TEXT, NULL),
)

ROUTES = (
    Completion(
        ("/v1/messages",),
        decode,
        "Answer a conversation (Anthropic)",
        fields=(*_FIELDS, *_MORE),
        example={**_EXAMPLE, "max_tokens": 64},
        result=_MESSAGE,
        chunk=record(
            type=word(
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
                "ping",
                "error",
            ),
            message=_MESSAGE,
            index=COUNT,
            content_block=_BLOCK,
            delta={"type": "object"},
            usage=_USAGE,
        ),
        wire=ANTHROPIC,
        aside=TAKEN,
    ),
    Computed(
        ("/v1/messages/count_tokens",),
        count_tokens,
        "The number of prompt tokens of a conversation (Anthropic)",
        fields=_FIELDS,
        example=_EXAMPLE,
        result=record(input_tokens=COUNT),
        wire=ANTHROPIC,
    ),
)
