"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from minka.chat import tools
from minka.chat.formats.format import CallArguments, CallStart, Content, Delta, Reasoning
from minka.chat.messages import ToolCall
from minka.chat.prompt import prompt_tokens
from minka.chat.turn import Turn
from minka.errors import RequestError
from minka.protocols.answer import Answer, Answers
from minka.protocols.body import STREAM_OPTIONS_FIELD, JsonObject, Options, decode_options, jobs, new_id
from minka.protocols.chat_body import CHAT_FIELDS, chat_text, chat_tokens, chat_turn, held_to, is_legacy
from minka.protocols.constraint import CONSTRAINT_FIELDS
from minka.protocols.exchange import DONE, frame
from minka.protocols.measures import logprob_object, progress_members, timings_object, usage_object
from minka.protocols.native import final_object, shown
from minka.protocols.openai_completions import MAX_LOGPROBS, with_logprobs
from minka.protocols.route import Completion
from minka.protocols.schema import COUNT, FLAG, NULL, TEXT, Field, between, either, listed, record, ref, word
from minka.protocols.served import Served
from minka.protocols.shapes import CHOICES_TAIL, FINISH
from minka.protocols.transcript import Transcript
from minka.types import Event, Finished, Progress, Token, TokenLogprobs

OWN_FIELDS = ("logprobs", "top_logprobs", *tools.FIELDS)
"""Fields that chat requests have and others have not."""

__all__ = ["CHAT_EXAMPLE", "CHAT_FIELDS", "OWN_FIELDS", "ROUTES", "ChatExchange", "chat_text", "chat_tokens", "decode"]


def decode(body: JsonObject, served: Served) -> ChatExchange:
    """A request of one conversation."""
    options = decode_options(body, served, supported=OWN_FIELDS)
    options = with_logprobs(options, _n_logprobs(body))
    return ChatExchange(chat_turn(body, served), options, served, legacy=is_legacy(body))


def _n_logprobs(body: JsonObject) -> int | None:
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if not isinstance(wanted, bool | None):
        raise RequestError('"logprobs" must be true or false', param="logprobs")
    if top is None:
        return 0 if wanted else None
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= MAX_LOGPROBS:
        raise RequestError(f'"top_logprobs" must be a number from 0 to {MAX_LOGPROBS}', param="top_logprobs")
    if not wanted:
        raise RequestError('"top_logprobs" needs "logprobs": true', param="top_logprobs")
    return top


class ChatExchange:
    """Implements `exchange.Exchange`. `legacy`: the client knows `function_call` and no tool calls."""

    def __init__(self, turn: Turn, options: Options, served: Served, *, legacy: bool = False) -> None:
        self._id = new_id("chatcmpl-")
        prompt = prompt_tokens(turn.prompt, served.tokenizer)
        self.jobs = held_to(turn, jobs([prompt], options, self._id), served, options.content)
        self.stream = options.generation.stream
        self.ping_interval = options.generation.sse_ping_interval
        self._turn, self._options, self._served, self._legacy = turn, options, served, legacy
        self._shows_reasoning = turn.format.reasoning is not None
        self._answers = Answers(turn, self.jobs)
        self._held: dict[int, list[TokenLogprobs]] = {answer.index: [] for answer in self._answers.all}
        self._tail: dict[str, object] = {
            "created": int(time.time()),
            "model": served.model.name,
            "system_fingerprint": served.build,
            "object": "chat.completion.chunk" if self.stream else "chat.completion",
            "id": self._id,
        }

    def add(self, event: Event) -> None:
        """See Exchange."""
        self._answers.add(event)

    # -- whole ---------------------------------------------------------------------------------------------------------

    def whole(self) -> object:
        """See Exchange."""
        all_ = self._answers.all
        body = {"choices": [self._choice(answer) for answer in all_]} | self._tail | {"usage": self._usage()}
        first = all_[0].transcript
        body["timings"] = timings_object(first.ended.timings)
        if self._options.generation.verbose:
            body["__verbose"] = self._verbose(first)
        return body

    def _verbose(self, first: Transcript) -> dict[str, object]:
        """llama-server's own answer, with what only chat requests have."""
        body = final_object(first, first.text, self._options, self._served)
        settings, ask = body["generation_settings"], self._turn.ask
        assert isinstance(settings, dict), "an object"
        settings |= {
            "chat_format": self._turn.format.name,
            "reasoning_format": self._turn.settings.reasoning_format,
            "generation_prompt": ask.prefill,
        }
        return body

    def _choice(self, answer: Answer) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": answer.content}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["content"] = answer.content or None
            message |= self._calls(answer.calls)
        choice = {"finish_reason": self._reason(answer), "index": answer.index, "message": message}
        if self._options.sampling.n_probs:
            choice["logprobs"] = self._logprobs(shown(answer.transcript, self._served))
        return choice

    def _calls(self, calls: Sequence[ToolCall]) -> dict[str, object]:
        if self._legacy:
            return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}
        return {
            "tool_calls": [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}, "id": call.id}
                for call in calls
            ]
        }

    def _reason(self, answer: Answer) -> str:
        reason = answer.finish_reason
        return "function_call" if self._legacy and reason == "tool_calls" else reason

    def _logprobs(self, probs: Iterable[TokenLogprobs]) -> dict[str, object]:
        n_top = self._options.n_top
        return {"content": [logprob_object(replace(entry, top=entry.top[:n_top])) for entry in probs]}

    def _usage(self) -> dict[str, object]:
        known = [answer.transcript.timings for answer in self._answers.all]
        usage = usage_object(known[:1], known)
        if self._shows_reasoning:
            n_reasoning = sum(answer.n_reasoning_tokens for answer in self._answers.all)
            usage["completion_tokens_details"] = {"reasoning_tokens": n_reasoning}
        return usage

    # -- stream --------------------------------------------------------------------------------------------------------

    def frames(self, event: Event) -> Iterable[bytes]:
        """See Exchange: the role first, then what the answer gains, then one finish chunk a choice."""
        answer, deltas = self._answers.add(event)
        progress = self._progress(event) if isinstance(event, Progress) else {}
        is_first = not answer.transcript.open_frames and isinstance(event, Token | Progress | Finished)
        if is_first or progress:
            answer.transcript.open_frames = True
            yield self._chunk(answer, {"role": "assistant", "content": None}, progress)
        match event:
            case Token():
                yield from self._token(answer, event, self._wire(deltas))
            case Finished():
                yield from self._end(answer, event, self._wire(deltas))
            case _:
                pass

    def _progress(self, event: Progress) -> dict[str, object]:
        return progress_members(event, timings=self._options.generation.timings_per_token)

    def _token(self, answer: Answer, event: Token, made: Sequence[Mapping[str, object]]) -> Iterable[bytes]:
        """Chunks of a token. Probabilities stand in the last one; a token that shows nothing yet hands them on."""
        held = self._held[answer.index]
        if event.logprobs is not None:
            held.append(event.logprobs)
        *before, last = made or ({},)
        for delta in before:
            yield self._chunk(answer, delta, {})
        if last:
            timed = self._options.generation.timings_per_token
            yield self._chunk(answer, last, {"timings": timings_object(event.timings)} if timed else {}, held=held)
            held.clear()

    def _end(self, answer: Answer, event: Finished, made: Sequence[Mapping[str, object]]) -> Iterable[bytes]:
        held = self._held[answer.index]
        for delta in made or ([{"content": ""}] if held else []):
            yield self._chunk(answer, delta, {}, held=held)
            held.clear()
        timings = {} if self._options.usage_in_stream else {"timings": timings_object(event.timings)}
        yield self._chunk(answer, {}, timings, finish_reason=self._reason(answer))

    def _wire(self, deltas: Iterable[Delta]) -> list[Mapping[str, object]]:
        """Deltas as OpenAI writes them, one kind of key each. Ends of calls are not told."""
        made = [self._wire_delta(delta) for delta in deltas]
        return [delta for delta in made if delta]

    def _wire_delta(self, delta: Delta) -> Mapping[str, object]:
        match delta:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallStart(index, name, id):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": id, "type": "function", "function": function}
                return {"function_call": function} if self._legacy else {"tool_calls": [call]}
            case CallArguments(index, text):
                more = {"arguments": text}
                return {"function_call": more} if self._legacy else {"tool_calls": [{"index": index, "function": more}]}
            case _:
                return {}

    def _chunk(
        self,
        answer: Answer,
        delta: Mapping[str, object],
        extra: Mapping[str, object],
        *,
        finish_reason: str | None = None,
        held: Sequence[TokenLogprobs] = (),
    ) -> bytes:
        choice: dict[str, object] = {"finish_reason": finish_reason, "index": answer.index, "delta": delta}
        if held:
            choice["logprobs"] = self._logprobs(held)
        usage = {"usage": self._usage()} if self._options.usage_so_far else {}
        return frame({"choices": [choice], **self._tail, **usage, **extra})

    def last_frames(self) -> Iterable[bytes]:
        """See Exchange: the usage if it was asked for, then [DONE]."""
        if self._options.usage_in_stream:
            timings = timings_object(self._answers.all[0].transcript.ended.timings)
            yield frame({"choices": []} | self._tail | {"usage": self._usage(), "timings": timings})
        yield DONE


CHAT_EXAMPLE = {"messages": [{"role": "user", "content": "Name three fruits."}]}
_FIELDS = (
    *CHAT_FIELDS,
    STREAM_OPTIONS_FIELD,
    Field("logprobs", FLAG, "the log probability of each token"),
    Field("top_logprobs", between(0, MAX_LOGPROBS), "so many of the most likely alternatives; needs logprobs"),
    *CONSTRAINT_FIELDS,
)
_LOGPROBS = either(record(content=listed(ref("Logprob"))), NULL)
_FUNCTION = record(name=TEXT, arguments=TEXT)
_CALL = record(index=COUNT, id=TEXT, type=word("function"), function=_FUNCTION)
_MESSAGE = record(
    role=TEXT,
    content=either(TEXT, NULL),
    reasoning_content=TEXT,
    tool_calls=listed(_CALL),
    function_call=_FUNCTION,
)
_FINISH = either(word("tool_calls", "function_call"), FINISH)
_CHOICE = record(finish_reason=_FINISH, index=COUNT, message=_MESSAGE, logprobs=_LOGPROBS)
_DELTA = record(finish_reason=_FINISH, index=COUNT, delta=_MESSAGE, logprobs=_LOGPROBS)

ROUTES = (
    Completion(
        ("/v1/chat/completions", "/chat/completions"),
        decode,
        "Answer a conversation (OpenAI)",
        fields=_FIELDS,
        example=CHAT_EXAMPLE,
        result=record(choices=listed(_CHOICE), object=word("chat.completion"), **CHOICES_TAIL),
        chunk=record(
            choices=listed(_DELTA),
            object=word("chat.completion.chunk"),
            prompt_progress=ref("Progress"),
            **CHOICES_TAIL,
        ),
    ),
)
