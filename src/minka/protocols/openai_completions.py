"""OpenAI's text completions: `POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

from minka.errors import RequestError
from minka.protocols.body import (
    PROMPT_FIELD,
    STREAM_OPTIONS_FIELD,
    JsonObject,
    Options,
    decode_options,
    decode_prompts,
    jobs,
    new_id,
)
from minka.protocols.exchange import DONE, frame
from minka.protocols.measures import progress_members, timings_object, usage_object
from minka.protocols.native import final_object, shown
from minka.protocols.route import Completion
from minka.protocols.schema import COUNT, NULL, NUMBER, TEXT, Field, between, either, listed, record, word
from minka.protocols.served import Served
from minka.protocols.shapes import CHOICES_TAIL, FINISH
from minka.protocols.transcript import Transcript, Transcripts
from minka.types import Event, Finished, Progress, Token, TokenLogprobs

MAX_LOGPROBS = 20
"""Alternatives a token can have; OpenAI allows 5, its clients for other servers ask for more."""


def decode(body: JsonObject, served: Served) -> CompletionsExchange:
    """A request of one or several prompts."""
    options = decode_options(body, served, supported=("logprobs",))
    options = with_logprobs(options, _n_logprobs(body.get("logprobs")))
    return CompletionsExchange(decode_prompts(body.get("prompt"), served.tokenizer), options, served)


def with_logprobs(options: Options, n: int | None) -> Options:
    """The options with the n best alternatives of each token, None for no log probabilities at all."""
    if n is None:
        return options
    # The engine reports a token's own probability together with at least one alternative.
    return replace(options, sampling=replace(options.sampling, n_probs=max(n, 1)), n_top=n)


def _n_logprobs(value: object) -> int | None:
    if value is None or value is False:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_LOGPROBS:
        raise RequestError(f'"logprobs" must be a number from 0 to {MAX_LOGPROBS}', param="logprobs")
    return value


class CompletionsExchange:
    """Implements `exchange.Exchange`."""

    def __init__(self, prompts: list[list[int]], options: Options, served: Served) -> None:
        self._id = new_id("cmpl-")
        self.jobs = jobs(prompts, options, self._id)
        self.stream = options.generation.stream
        self.ping_interval = options.generation.sse_ping_interval
        self._options, self._served = options, served
        self._transcripts = Transcripts(self.jobs)
        self._head: dict[str, object] = {
            "created": int(time.time()),
            "model": served.model.name,
            "system_fingerprint": served.build,
            "object": "text_completion",
            "id": self._id,
        }

    def add(self, event: Event) -> None:
        """See Exchange."""
        self._transcripts.add(event)

    def whole(self) -> object:
        """See Exchange."""
        all_ = self._transcripts.all
        choices = [
            self._choice(t, t.text, shown(t, self._served), 0) | {"finish_reason": t.finish_reason} for t in all_
        ]
        body = {"choices": choices} | self._head | {"usage": self._usage()}
        body["timings"] = timings_object(all_[0].ended.timings)
        if self._options.generation.verbose:
            body["__verbose"] = final_object(all_[0], all_[0].text, self._options, self._served)
        return body

    def frames(self, event: Event) -> Iterable[bytes]:
        """See Exchange."""
        transcript = self._transcripts.add(event)
        match event:
            case Token():
                if event.text or event.logprobs:
                    yield frame(self._chunk(transcript, event))
            case Progress():
                choice = self._choice(transcript, "", [], 0)
                members = progress_members(event, timings=self._options.generation.timings_per_token)
                yield frame({"choices": [choice]} | self._head | members)
            case Finished():
                if event.text:
                    yield frame({"choices": [self._choice(transcript, event.text, [], 0)]} | self._head)
                choice = self._choice(transcript, "", [], 0) | {"finish_reason": transcript.finish_reason}
                yield frame({"choices": [choice]} | self._head | {"timings": timings_object(event.timings)})
            case _:
                pass

    def last_frames(self) -> Iterable[bytes]:
        """See Exchange."""
        if self._options.usage_in_stream:
            yield frame({"choices": []} | self._head | {"usage": self._usage()})
        yield DONE

    def _chunk(self, transcript: Transcript, event: Token) -> dict[str, object]:
        probs = [event.logprobs] if event.logprobs else []
        offset = sum(map(len, transcript.pieces)) - len(event.text) if probs else 0
        body = {"choices": [self._choice(transcript, event.text, probs, offset)]} | self._head
        if self._options.generation.timings_per_token:
            body["timings"] = timings_object(event.timings)
        return body

    def _choice(self, transcript: Transcript, text: str, probs: list[TokenLogprobs], offset: int) -> dict[str, object]:
        logprobs = legacy_logprobs(probs, offset, self._options.n_top) if probs else None
        return {"text": text, "index": transcript.index, "logprobs": logprobs, "finish_reason": None}

    def _usage(self) -> dict[str, object]:
        ends = [transcript.ended.timings for transcript in self._transcripts.all]
        return usage_object(ends[:: self._options.generation.n_cmpl], ends)


def legacy_logprobs(probs: list[TokenLogprobs], offset: int, n_top: int | None) -> dict[str, object]:
    """`logprobs` as text completions have it: parallel lists, one entry a token; offsets count characters."""
    tokens = [entry.chosen.piece.decode("utf-8", "replace") for entry in probs]
    offsets = list(accumulate(map(len, tokens), initial=offset))[:-1]
    return {
        "tokens": tokens,
        "token_logprobs": [entry.chosen.logprob for entry in probs],
        "top_logprobs": [
            {prob.piece.decode("utf-8", "replace"): prob.logprob for prob in entry.top[:n_top]} for entry in probs
        ],
        "text_offset": offsets,
    }


_FIELDS = (
    PROMPT_FIELD,
    STREAM_OPTIONS_FIELD,
    Field(
        "logprobs",
        either(between(0, MAX_LOGPROBS), {"const": False}),
        "the log probability of each token, with so many of the most likely alternatives",
    ),
)
_LOGPROBS = record(
    tokens=listed(TEXT),
    token_logprobs=listed(NUMBER),
    top_logprobs=listed({"type": "object", "additionalProperties": NUMBER}),
    text_offset=listed(COUNT),
)
_CHOICE = record(text=TEXT, index=COUNT, logprobs=either(_LOGPROBS, NULL), finish_reason=FINISH)
_RESULT = record(choices=listed(_CHOICE), object=word("text_completion"), **CHOICES_TAIL)

ROUTES = (
    Completion(
        ("/v1/completions",),
        decode,
        "Complete a prompt (OpenAI)",
        fields=_FIELDS,
        example={"prompt": "Once upon a time", "max_tokens": 32},
        result=_RESULT,
        chunk=_RESULT,
    ),
)
