"""OpenAI's text completions: `POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from minka.errors import RequestError, UnsupportedError
from minka.params import GenerationParams, json_type
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
from minka.protocols.constraint import CONSTRAINT_FIELDS, check
from minka.protocols.exchange import DONE, frame
from minka.protocols.infill import infill_prompt, plain_tokens
from minka.protocols.legacy_logprobs import Lists, joined, legacy_logprobs, prompt_lists, vllm_prompt_logprobs
from minka.protocols.measures import progress_members, timings_object, usage_object
from minka.protocols.native import final_object, shown
from minka.protocols.route import Completion
from minka.protocols.schema import COUNT, FLAG, NULL, NUMBER, TEXT, Field, between, either, listed, record, ref, word
from minka.protocols.served import Served
from minka.protocols.shapes import CHOICES_TAIL, FINISH
from minka.protocols.thinking import PLAIN_FIELDS, opened, watched
from minka.protocols.transcript import Transcript, Transcripts
from minka.protocols.triggers import LAZY_FIELDS, TRIGGER_FIELDS
from minka.types import Event, Finished, Job, Progress, Timings, Token, TokenLogprobs

MAX_LOGPROBS = 20
"""Alternatives a token can have; OpenAI allows 5, its clients for other servers ask for more."""

MAX_BEST_OF = 20

_OWN_FIELDS = ("logprobs", "prompt_logprobs", "echo", "suffix", "best_of")


@dataclass(frozen=True, slots=True)
class Asked:
    """What this route takes besides the fields that all completion routes share.

    `n` is how many of the completions of a prompt are answered, the likeliest ones. `n_prompt_logprobs` is vLLM's.
    """

    n: int = 1
    echo: bool = False
    suffix: str = ""
    n_logprobs: int | None = None
    n_prompt_logprobs: int | None = None

    @property
    def n_scored(self) -> int:
        """`Job.prompt_logprobs`: alternatives of prompt tokens, -1 if nobody asks for their probabilities."""
        wanted = [self.n_logprobs if self.echo else None, self.n_prompt_logprobs]
        return max((n for n in wanted if n is not None), default=-1)


def decode(body: JsonObject, served: Served) -> CompletionsExchange:
    """A request of one or several prompts."""
    options = watched(decode_options(body, served, supported=(*_OWN_FIELDS, *LAZY_FIELDS)), body, served)
    check(options.constraint, served.grammars, options.content)
    n_completions = options.generation.n_cmpl
    asked = Asked(
        n=n_completions,
        echo=_flag(body, "echo"),
        suffix=_suffix(body),
        n_logprobs=_count(body, "logprobs"),
        n_prompt_logprobs=_count(body, "prompt_logprobs"),
    )
    n_completions = _best_of(body, options.generation)
    _check_together(asked, options.generation)
    # To choose the likeliest completions their probabilities are needed, whether they are shown or not.
    n_probs = asked.n_logprobs if asked.n_logprobs is not None or n_completions == asked.n else 0
    options = with_logprobs(options, n_probs)
    options = replace(options, generation=replace(options.generation, n_cmpl=n_completions))
    prompts = decode_prompts(body.get("prompt"), served.tokenizer)
    texts = _texts(body["prompt"], prompts, served) if asked.echo else [""] * len(prompts)
    if asked.suffix:
        prompts = _gaps(body["prompt"], asked.suffix, served)
    return CompletionsExchange(prompts, texts, options, asked, served)


def with_logprobs(options: Options, n: int | None) -> Options:
    """The options with the n best alternatives of each token, None for no log probabilities at all."""
    if n is None:
        return options
    # The engine reports a token's own probability together with at least one alternative.
    return replace(options, sampling=replace(options.sampling, n_probs=max(n, 1)), n_top=n)


def _count(body: JsonObject, name: str) -> int | None:
    value = body.get(name)
    if value is None or value is False:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_LOGPROBS:
        raise RequestError(f'"{name}" must be a number from 0 to {MAX_LOGPROBS}', param=name)
    return value


def _flag(body: JsonObject, name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise RequestError(f'"{name}" must be true or false, but is {json_type(value)}', param=name)
    return bool(value)


def _suffix(body: JsonObject) -> str:
    value = body.get("suffix")
    if not isinstance(value, str | None):
        raise RequestError(f'"suffix" must be a string, but is {json_type(value)}', param="suffix")
    return value or ""


def _best_of(body: JsonObject, generation: GenerationParams) -> int:
    """How many completions of each prompt are made."""
    value, n = body.get("best_of"), generation.n_cmpl
    if value is None:
        return n
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_BEST_OF:
        raise RequestError(f'"best_of" must be a number from 1 to {MAX_BEST_OF}', param="best_of")
    if value < n:
        raise RequestError(f'"best_of" must be at least "n", but {value} < {n}', param="best_of")
    if value > n and generation.stream:
        raise RequestError('the best of several completions cannot be streamed: "best_of" must be "n"', param="best_of")
    return value


def _check_together(asked: Asked, generation: GenerationParams) -> None:
    if asked.suffix and (asked.echo or asked.n_prompt_logprobs is not None):
        raise UnsupportedError('"suffix" excludes "echo" and "prompt_logprobs"', param="suffix")
    if asked.n_prompt_logprobs is not None and generation.stream:
        raise UnsupportedError('"prompt_logprobs" cannot be streamed', param="prompt_logprobs")


def _texts(value: object, prompts: Sequence[Sequence[int]], served: Served) -> list[str]:
    """What is echoed of each prompt: the text that was sent, or what the token ids spell."""
    items = value if isinstance(value, list) and len(value) == len(prompts) else [value]
    if len(items) != len(prompts):
        items = [None] * len(prompts)  # one prompt of several parts
    return [_text(item, tokens, served) for item, tokens in zip(items, prompts, strict=True)]


def _text(item: object, tokens: Sequence[int], served: Served) -> str:
    match item:
        case str():
            return item
        case {"prompt_string": str(text)}:
            return text
        case _:
            return served.tokenizer.detokenize(tokens, special=True).decode("utf-8", "replace")


def _gaps(value: object, suffix: str, served: Served) -> list[list[int]]:
    """Prompts for the gap between each of the request's prompts, which must be texts, and the suffix."""
    prefixes = value if isinstance(value, list) else [value]
    if not all(isinstance(prefix, str) for prefix in prefixes):
        raise RequestError('"prompt" must be a string, or a list of strings, where there is a "suffix"', param="prompt")
    after = plain_tokens(suffix, served)
    return [infill_prompt(served, plain_tokens(str(prefix), served), after) for prefix in prefixes]


class CompletionsExchange:
    """Implements `exchange.Exchange`. `texts` are the prompts as they are echoed."""

    def __init__(
        self, prompts: list[list[int]], texts: list[str], options: Options, asked: Asked, served: Served
    ) -> None:
        self._id = new_id("cmpl-")
        self._each = options.generation.n_cmpl
        self.stream = options.generation.stream
        begun = opened(jobs(prompts, options, self._id), served.tokenizer)
        self.jobs = tuple(self._scored(job, index, asked) for index, job in enumerate(begun))
        self.ping_interval = options.generation.sse_ping_interval
        self._texts, self._options, self._asked, self._served = texts, options, asked, served
        self._shows = asked.n_logprobs is not None or (options.sampling.n_probs > 0 and options.n_top is None)
        self._transcripts = Transcripts(self.jobs)
        self._head: dict[str, object] = {
            "created": int(time.time()),
            "model": served.model.name,
            "system_fingerprint": served.build,
            "object": "text_completion",
            "id": self._id,
        }

    def _scored(self, job: Job, index: int, asked: Asked) -> Job:
        """The first completion of a prompt computes the prompt's probabilities; in a stream each, as none waits."""
        scores = asked.n_scored >= 0 and (self.stream or not index % self._each)
        return replace(job, prompt_logprobs=asked.n_scored) if scores else job

    def add(self, event: Event) -> None:
        """See Exchange."""
        self._transcripts.add(event)

    def whole(self) -> object:
        """See Exchange."""
        chosen = self._chosen()
        choices = [self._whole_choice(index, transcript) for index, transcript in enumerate(chosen)]
        body = {"choices": choices} | self._head | {"usage": self._usage()}
        body["timings"] = timings_object(chosen[0].ended.timings)
        if self._options.generation.verbose:
            body["__verbose"] = final_object(chosen[0], chosen[0].text, self._options, self._served)
        return body

    def _chosen(self) -> list[Transcript]:
        """The completions that are answered: of each prompt all, or the likeliest ones."""
        all_, each, n = self._transcripts.all, self._each, self._asked.n
        groups = [all_[start : start + each] for start in range(0, len(all_), each)]
        return [found for group in groups for found in (sorted(group, key=_unlikely)[:n] if n < each else group)]

    def _whole_choice(self, index: int, transcript: Transcript) -> dict[str, object]:
        echo = self._echo(transcript)
        logprobs: Lists | None = None
        if self._shows:
            logprobs = legacy_logprobs(shown(transcript, self._served), len(echo), self._options.n_top)
            if self._asked.echo:
                logprobs = joined(self._prompt_lists(transcript), logprobs)
        choice = _choice(index, echo + transcript.text, logprobs, transcript.finish_reason)
        if (n := self._asked.n_prompt_logprobs) is not None:
            choice["prompt_logprobs"] = vllm_prompt_logprobs(self._first(transcript).prompt_logprobs, n)
        return choice

    def _echo(self, transcript: Transcript) -> str:
        return self._texts[transcript.index // self._each]

    def _first(self, transcript: Transcript) -> Transcript:
        """The completion of the same prompt that knows the prompt's probabilities."""
        return transcript if self.stream else self._transcripts.all[transcript.index - transcript.index % self._each]

    def _prompt_lists(self, transcript: Transcript) -> Lists:
        probs = self._first(transcript).prompt_logprobs
        tokenizer = self._served.tokenizer
        return prompt_lists(transcript.job.prompt, probs, self._echo(transcript), tokenizer, self._asked.n_logprobs)

    # -- streams -----------------------------------------------------------------------------------------------------

    def frames(self, event: Event) -> Iterable[bytes]:
        """See Exchange."""
        transcript = self._transcripts.add(event)
        if self._asked.echo and isinstance(event, Token | Finished) and not transcript.open_frames:
            transcript.open_frames = True
            yield from self._echoed(transcript)
        match event:
            case Token():
                if event.text or event.logprobs:
                    yield self._chunk(transcript, event.text, event.logprobs, self._timings(event.timings))
            case Progress():
                members = progress_members(event, timings=self._options.generation.timings_per_token)
                yield self._chunk(transcript, "", None, members)
            case Finished():
                if event.text:
                    yield self._chunk(transcript, event.text, None, {})
                yield self._chunk(
                    transcript, "", None, {"timings": timings_object(event.timings)}, transcript.finish_reason
                )
            case _:
                pass

    def _echoed(self, transcript: Transcript) -> Iterable[bytes]:
        lists = self._prompt_lists(transcript) if self._shows else None
        yield self._event(_choice(transcript.index, self._echo(transcript), lists, None), {})

    def _timings(self, timings: Timings) -> dict[str, object]:
        return {"timings": timings_object(timings)} if self._options.generation.timings_per_token else {}

    def _chunk(
        self,
        transcript: Transcript,
        text: str,
        probs: TokenLogprobs | None,
        members: dict[str, object],
        finish_reason: str | None = None,
    ) -> bytes:
        logprobs: Lists | None = None
        if probs is not None and self._shows:
            offset = len(self._echo(transcript)) + sum(map(len, transcript.pieces)) - len(text)
            logprobs = legacy_logprobs([probs], offset, self._options.n_top)
        return self._event(_choice(transcript.index, text, logprobs, finish_reason), members)

    def _event(self, choice: dict[str, object], members: dict[str, object]) -> bytes:
        usage = {"usage": self._usage_so_far()} if self._options.usage_so_far else {}
        return frame({"choices": [choice]} | self._head | usage | members)

    def last_frames(self) -> Iterable[bytes]:
        """See Exchange."""
        if self._options.usage_in_stream:
            yield frame({"choices": []} | self._head | {"usage": self._usage()})
        yield DONE

    # -- counts ------------------------------------------------------------------------------------------------------

    def _usage(self) -> dict[str, object]:
        ends = [transcript.ended.timings for transcript in self._transcripts.all]
        return usage_object(ends[:: self._each], ends)

    def _usage_so_far(self) -> dict[str, object]:
        known = [transcript.timings for transcript in self._transcripts.all]
        return usage_object(known[:: self._each], known)


def _unlikely(transcript: Transcript) -> float:
    """A completion's mean surprise, in nats a token."""
    return -fmean(probs.chosen.logprob for probs in transcript.logprobs) if transcript.logprobs else 0.0


def _choice(index: int, text: str, logprobs: Lists | None, finish_reason: str | None) -> dict[str, object]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason}


_FIELDS = (
    PROMPT_FIELD,
    STREAM_OPTIONS_FIELD,
    *CONSTRAINT_FIELDS,
    *TRIGGER_FIELDS,
    *PLAIN_FIELDS,
    Field("echo", FLAG, "begin the answer with the prompt; with logprobs it has the prompt's as well"),
    Field("suffix", TEXT, "the text after the gap that is to be filled; the model must have tokens for that"),
    Field("best_of", between(1, MAX_BEST_OF), "make so many completions and answer the n likeliest; not for streams"),
    Field(
        "logprobs",
        either(between(0, MAX_LOGPROBS), {"const": False}),
        "the log probability of each token, with so many of the most likely alternatives",
    ),
    Field(
        "prompt_logprobs",
        either(between(0, MAX_LOGPROBS), {"const": False}),
        "the same for the tokens of the prompt, in vLLM's form; not for streams",
    ),
)
_LOGPROBS = record(
    tokens=listed(TEXT),
    token_logprobs=listed(either(NUMBER, NULL)),
    top_logprobs=listed(either({"type": "object", "additionalProperties": NUMBER}, NULL)),
    text_offset=listed(COUNT),
)
_BY_ID = {"type": "object", "additionalProperties": record(logprob=NUMBER, rank=COUNT, decoded_token=TEXT)}
_CHOICE = record(
    text=TEXT,
    index=COUNT,
    logprobs=either(_LOGPROBS, NULL),
    finish_reason=FINISH,
    prompt_logprobs=listed(either(_BY_ID, NULL)),
)
_RESULT = record(choices=listed(_CHOICE), object=word("text_completion"), **CHOICES_TAIL)
_EVENT = record(
    choices=listed(_CHOICE), object=word("text_completion"), prompt_progress=ref("Progress"), **CHOICES_TAIL
)

ROUTES = (
    Completion(
        ("/v1/completions",),
        decode,
        "Complete a prompt (OpenAI)",
        fields=_FIELDS,
        example={"prompt": "Once upon a time", "max_tokens": 32},
        result=_RESULT,
        chunk=_EVENT,
    ),
)
