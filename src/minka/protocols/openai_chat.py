"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from minka.chat.messages import ROLES
from minka.chat.prompt import decode_prompt, prompt_tokens
from minka.errors import RequestError
from minka.protocols.body import STREAM_OPTIONS_FIELD, JsonObject, Options, decode_options, jobs, new_id
from minka.protocols.exchange import DONE, frame
from minka.protocols.measures import logprob_object, progress_members, timings_object, usage_object
from minka.protocols.native import final_object, shown
from minka.protocols.openai_completions import MAX_LOGPROBS, with_logprobs
from minka.protocols.route import Completion
from minka.protocols.schema import COUNT, FLAG, NULL, TEXT, Field, between, either, listed, record, ref, word
from minka.protocols.served import Served
from minka.protocols.shapes import CHOICES_TAIL, FINISH
from minka.protocols.transcript import Transcript, Transcripts
from minka.types import Event, Finished, Progress, Token, TokenLogprobs

_OWN_FIELDS = ("logprobs", "top_logprobs")


def decode(body: JsonObject, served: Served) -> ChatExchange:
    """A request of one conversation."""
    options = decode_options(body, served, supported=_OWN_FIELDS)
    options = with_logprobs(options, _n_logprobs(body))
    return ChatExchange(chat_tokens(body, served), options, served)


def chat_tokens(body: JsonObject, served: Served) -> list[int]:
    """The tokens of a chat request's prompt."""
    return prompt_tokens(chat_text(body, served), served.tokenizer)


def chat_text(body: JsonObject, served: Served) -> str:
    """The text that the template makes of a chat request."""
    prompt = decode_prompt(body, prefill=served.prefill_assistant)
    return prompt.render(served.template, served.template_kwargs)


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
    """Implements `exchange.Exchange`."""

    def __init__(self, prompt: list[int], options: Options, served: Served) -> None:
        self._id = new_id("chatcmpl-")
        self.jobs = jobs([prompt], options, self._id)
        self.stream = options.generation.stream
        self.ping_interval = options.generation.sse_ping_interval
        self._options, self._served = options, served
        self._transcripts = Transcripts(self.jobs)
        self._tail: dict[str, object] = {
            "created": int(time.time()),
            "model": served.model.name,
            "system_fingerprint": served.build,
            "object": "chat.completion.chunk" if self.stream else "chat.completion",
            "id": self._id,
        }

    def add(self, event: Event) -> None:
        """See Exchange."""
        self._transcripts.add(event)

    def whole(self) -> object:
        """See Exchange."""
        all_ = self._transcripts.all
        body = {"choices": [self._choice(transcript) for transcript in all_]} | self._tail | {"usage": self._usage()}
        body["timings"] = timings_object(all_[0].ended.timings)
        if self._options.generation.verbose:
            body["__verbose"] = final_object(all_[0], all_[0].text, self._options, self._served)
        return body

    def _choice(self, transcript: Transcript) -> dict[str, object]:
        choice: dict[str, object] = {
            "finish_reason": transcript.finish_reason,
            "index": transcript.index,
            "message": {"role": "assistant", "content": transcript.text},
        }
        if self._options.sampling.n_probs:
            choice["logprobs"] = self._logprobs(shown(transcript, self._served))
        return choice

    def _logprobs(self, probs: Iterable[TokenLogprobs]) -> dict[str, object]:
        n_top = self._options.n_top
        return {"content": [logprob_object(replace(entry, top=entry.top[:n_top])) for entry in probs]}

    def _usage(self) -> dict[str, object]:
        ends = [transcript.ended.timings for transcript in self._transcripts.all]
        return usage_object(ends[:1], ends)

    def frames(self, event: Event) -> Iterable[bytes]:
        """See Exchange: the role first, then text, then one finish chunk a choice."""
        transcript = self._transcripts.add(event)
        if not transcript.open_frames and isinstance(event, Token | Progress | Finished):
            transcript.open_frames = True
            first = {"role": "assistant", "content": None}
            yield self._chunk(transcript, first, {} if not isinstance(event, Progress) else self._progress(event))
        elif isinstance(event, Progress):
            yield self._chunk(transcript, {"role": "assistant", "content": None}, self._progress(event))
        match event:
            case Token():
                if event.text or event.logprobs:
                    yield self._text(transcript, event)
            case Finished():
                if event.text:
                    yield self._chunk(transcript, {"content": event.text}, {})
                yield self._finish(transcript, event)
            case _:
                pass

    def _progress(self, event: Progress) -> dict[str, object]:
        return progress_members(event, timings=self._options.generation.timings_per_token)

    def _text(self, transcript: Transcript, event: Token) -> bytes:
        extra: dict[str, object] = {}
        if self._options.generation.timings_per_token:
            extra["timings"] = timings_object(event.timings)
        logprobs = self._logprobs([event.logprobs]) if event.logprobs else None
        return self._chunk(transcript, {"content": event.text}, extra, logprobs=logprobs)

    def _finish(self, transcript: Transcript, event: Finished) -> bytes:
        last = not self._options.usage_in_stream
        extra: dict[str, object] = {"timings": timings_object(event.timings)} if last else {}
        return self._chunk(transcript, {}, extra, finish_reason=transcript.finish_reason)

    def _chunk(
        self,
        transcript: Transcript,
        delta: Mapping[str, object],
        extra: Mapping[str, object],
        *,
        finish_reason: str | None = None,
        logprobs: dict[str, object] | None = None,
    ) -> bytes:
        choice: dict[str, object] = {"finish_reason": finish_reason, "index": transcript.index, "delta": delta}
        if logprobs is not None:
            choice["logprobs"] = logprobs
        return frame({"choices": [choice], **self._tail, **extra})

    def last_frames(self) -> Iterable[bytes]:
        """See Exchange: the usage if it was asked for, then [DONE]."""
        if self._options.usage_in_stream:
            timings = timings_object(self._transcripts.all[0].ended.timings)
            yield frame({"choices": []} | self._tail | {"usage": self._usage(), "timings": timings})
        yield DONE


_MESSAGE = {
    **record(
        role=word(*sorted(ROLES)),
        content=either(TEXT, listed(record(type=word("text"), text=TEXT)), NULL),
        name=TEXT,
        reasoning_content=TEXT,
        tool_calls=listed({"type": "object"}),
        tool_call_id=TEXT,
    ),
    "required": ["role"],
}
CHAT_FIELDS = (
    Field("messages", listed(_MESSAGE, minItems=1), "the conversation, oldest message first", required=True),
    Field("add_generation_prompt", FLAG, "end the prompt with the header of an answer; true if not given"),
    Field(
        "continue_final_message",
        either(FLAG, word("content", "reasoning_content")),
        "go on with the assistant's message at the end of the conversation",
    ),
    Field("chat_template_kwargs", {"type": "object"}, "further variables for the chat template"),
)
CHAT_EXAMPLE = {"messages": [{"role": "user", "content": "Name three fruits."}]}
_FIELDS = (
    *CHAT_FIELDS,
    STREAM_OPTIONS_FIELD,
    Field("logprobs", FLAG, "the log probability of each token"),
    Field("top_logprobs", between(0, MAX_LOGPROBS), "so many of the most likely alternatives; needs logprobs"),
)
_LOGPROBS = either(record(content=listed(ref("Logprob"))), NULL)
_CHOICE = record(finish_reason=FINISH, index=COUNT, message=record(role=TEXT, content=TEXT), logprobs=_LOGPROBS)
_DELTA = record(
    finish_reason=FINISH, index=COUNT, delta=record(role=TEXT, content=either(TEXT, NULL)), logprobs=_LOGPROBS
)

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
