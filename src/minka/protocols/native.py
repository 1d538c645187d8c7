"""llama-server's own completion route: `POST /completion`. Streams end with the full object, not with [DONE]."""

from __future__ import annotations

from collections.abc import Iterable

from minka.protocols.body import PROMPT_FIELD, JsonObject, Options, decode_options, decode_prompts, jobs, new_id
from minka.protocols.constraint import CONSTRAINT_FIELDS, check
from minka.protocols.exchange import frame
from minka.protocols.measures import logprob_object, prob_object, progress_members, timings_object
from minka.protocols.route import Completion
from minka.protocols.schema import COUNT, FLAG, TEXT, TOKEN, either, listed, record, ref, word
from minka.protocols.served import Served
from minka.protocols.settings import settings_object
from minka.protocols.thinking import PLAIN_FIELDS, opened, watched
from minka.protocols.transcript import Transcript, Transcripts
from minka.protocols.triggers import LAZY_FIELDS, TRIGGER_FIELDS
from minka.types import Event, Finished, FinishReason, Progress, Token, TokenLogprobs


def decode(body: JsonObject, served: Served) -> NativeExchange:
    """A request of one or several prompts."""
    options = watched(decode_options(body, served, supported=LAZY_FIELDS), body, served)
    check(options.constraint, served.grammars, options.content)
    prompts = decode_prompts(body.get("prompt"), served.tokenizer)
    return NativeExchange(prompts, options, served, is_list=len(prompts) > 1 or options.generation.n_cmpl > 1)


class NativeExchange:
    """Implements `exchange.Exchange`."""

    def __init__(self, prompts: list[list[int]], options: Options, served: Served, *, is_list: bool) -> None:
        self.jobs = opened(jobs(prompts, options, new_id("cmpl-")), served.tokenizer)
        self.stream = options.generation.stream
        self.ping_interval = options.generation.sse_ping_interval
        self._options, self._served, self._is_list = options, served, is_list
        self._transcripts = Transcripts(self.jobs)

    def add(self, event: Event) -> None:
        """See Exchange."""
        self._transcripts.add(event)

    def whole(self) -> object:
        """See Exchange: one object, or a list if there are several completions."""
        answers = [self._final(transcript, transcript.text) for transcript in self._transcripts.all]
        return answers if self._is_list else answers[0]

    def frames(self, event: Event) -> Iterable[bytes]:
        """See Exchange."""
        transcript = self._transcripts.add(event)
        match event:
            case Token():
                yield frame(self._partial(transcript, event.text, [event.token], event))
            case Progress():
                empty = self._partial(transcript, "", [], None)
                yield frame(empty | progress_members(event, timings=self._options.generation.timings_per_token))
            case Finished():
                if event.text:
                    yield frame(self._partial(transcript, event.text, [], None))
                yield frame(self._final(transcript, ""))
            case _:
                pass

    def last_frames(self) -> Iterable[bytes]:
        """See Exchange: nothing, the final objects have `stop` true."""
        return ()

    def _partial(self, transcript: Transcript, text: str, tokens: list[int], event: Token | None) -> dict[str, object]:
        body: dict[str, object] = {
            "index": transcript.index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(transcript.tokens),
            "tokens_evaluated": len(transcript.job.prompt),
        }
        if event is not None and self._options.generation.timings_per_token:
            body["timings"] = timings_object(event.timings)
        if event is not None and event.logprobs is not None:
            body["completion_probabilities"] = [self._probabilities(event.logprobs)]
        return body

    def _final(self, transcript: Transcript, text: str) -> dict[str, object]:
        body = final_object(transcript, text, self._options, self._served)
        fields = self._options.generation.response_fields
        return {path: value for path in fields if (value := _at(body, path)) is not None} if fields else body

    def _probabilities(self, probs: TokenLogprobs) -> dict[str, object]:
        after = self._options.sampling.post_sampling_probs
        return prob_object(probs) if after else logprob_object(probs, with_id=True)


def final_object(transcript: Transcript, text: str, options: Options, served: Served) -> dict[str, object]:
    """llama-server's native answer; also what `verbose` adds to an OpenAI one."""
    end, job, generation = transcript.ended, transcript.job, options.generation
    body: dict[str, object] = {
        "index": transcript.index,
        "content": text,
        "tokens": transcript.tokens if generation.return_tokens and not generation.stream else [],
        "id_slot": transcript.slot,
        "stop": True,
        "model": served.model.name,
        "tokens_predicted": end.timings.predicted_n,
        "tokens_evaluated": len(job.prompt),
        "generation_settings": settings_object(
            job, stream=generation.stream, timings_per_token=generation.timings_per_token
        ),
        "prompt": served.tokenizer.detokenize(job.prompt, special=True).decode("utf-8", "replace"),
        "has_new_line": "\n" in transcript.text,
        "truncated": end.truncated,
        "stop_type": end.reason.value,
        "stopping_word": end.stop_word,
        "tokens_cached": end.n_past,
        "timings": timings_object(end.timings),
    }
    if transcript.logprobs and not generation.stream:
        after = options.sampling.post_sampling_probs
        body["completion_probabilities"] = [
            prob_object(probs) if after else logprob_object(probs, with_id=True) for probs in shown(transcript, served)
        ]
    return body


def shown(transcript: Transcript, served: Served) -> list[TokenLogprobs]:
    """Probabilities of the tokens that are in the text: those of a stop string are not."""
    if transcript.ended.reason is not FinishReason.WORD:
        return transcript.logprobs
    word = served.tokenizer.tokenize(transcript.ended.stop_word, add_special=False, parse_special=False)
    return transcript.logprobs[: max(0, len(transcript.logprobs) - len(word))]


def _at(body: object, path: str) -> object:
    """The value at a path such as `generation_settings/n_predict`, None if there is none."""
    for key in path.split("/"):
        body = body.get(key) if isinstance(body, dict) else None
    return body


RESULT = record(
    index=COUNT,
    content=TEXT,
    tokens=listed(TOKEN),
    id_slot=COUNT,
    stop=FLAG,
    model=TEXT,
    tokens_predicted=COUNT,
    tokens_evaluated=COUNT,
    generation_settings={"type": "object"},
    prompt=TEXT,
    has_new_line=FLAG,
    truncated=FLAG,
    stop_type=word(*FinishReason),
    stopping_word=TEXT,
    tokens_cached=COUNT,
    timings=ref("Timings"),
    completion_probabilities=listed(ref("Logprob")),
)
CHUNK = record(
    index=COUNT,
    content=TEXT,
    tokens=listed(TOKEN),
    stop=FLAG,
    id_slot=COUNT,
    tokens_predicted=COUNT,
    tokens_evaluated=COUNT,
    timings=ref("Timings"),
    prompt_progress=ref("Progress"),
    completion_probabilities=listed(ref("Logprob")),
)

ROUTES = (
    Completion(
        ("/completion", "/completions"),
        decode,
        "Complete a prompt (llama-server)",
        fields=(PROMPT_FIELD, *CONSTRAINT_FIELDS, *TRIGGER_FIELDS, *PLAIN_FIELDS),
        example={"prompt": "Once upon a time", "n_predict": 32},
        result=either(RESULT, listed(RESULT)),
        chunk=CHUNK,
    ),
)
