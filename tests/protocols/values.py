"""What protocol tests stand on: a model's facts without a model, and exchanges played through by hand-made events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from types import MappingProxyType

from minka.chat.template import select_template
from minka.params import GenerationParams, SamplingParams
from minka.protocols.exchange import Exchange
from minka.protocols.served import EmbeddingFacts, ModelFacts, Served
from minka.types import (
    Adapter,
    Event,
    FimTokens,
    Finished,
    FinishReason,
    Job,
    Pooling,
    Progress,
    PromptLogprobs,
    Started,
    Timings,
    Token,
    Tokenizer,
    TokenLogprobs,
    TokenProb,
)
from tests.fakes import FakeVocab

NOTHING: Mapping[str, object] = MappingProxyType({})
FIM = FimTokens(prefix=1, suffix=2, middle=3)


def made_served(
    vocab: Tokenizer | None = None,
    *,
    n_ctx: int = 4096,
    n_slots: int = 4,
    max_jobs: int = 64,
    template: str = "chatml",
    sampling: SamplingParams | None = None,
    generation: GenerationParams | None = None,
    name: str = "fake.gguf",
    fim: FimTokens | None = FIM,
    adapters: tuple[Adapter, ...] = (),
    n_batch: int = 512,
) -> Served:
    """A model as protocols see it: bytes as tokens, ChatML."""
    vocab = vocab or FakeVocab()
    facts = ModelFacts(
        path=f"models/{name}",
        name=name,
        aliases=("other-name",),
        tags=(),
        description="a fake",
        ftype="F32",
        vocab_type=1,
        n_ctx_train=n_ctx,
        n_embd=8,
        n_params=1000,
        size=4000,
    )
    return Served(
        model=facts,
        tokenizer=vocab,
        template=select_template(None, None, template, bos_token=vocab.text(vocab.bos), add_bos=vocab.add_bos),
        n_ctx=n_ctx,
        n_slots=n_slots,
        max_jobs=max_jobs,
        created=1_700_000_000,
        build="b0-test",
        sampling=sampling or SamplingParams(),
        generation=generation or GenerationParams(),
        prefill_assistant=True,
        template_kwargs=NOTHING,
        n_batch=n_batch,
        fim=fim,
        adapters=adapters,
    )


def served_for(path: str) -> Served:
    """A model that can do what a route is for: it ranks for a path of reranking, and embeds for all others."""
    pooling = Pooling.RANK if "rerank" in path else Pooling.MEAN
    return replace(made_served(), embeddings=EmbeddingFacts(pooling, width=8))


def timings(predicted_n: int = 0, *, prompt_n: int = 5, cache_n: int = 0) -> Timings:
    return Timings(
        cache_n=cache_n,
        prompt_n=prompt_n,
        prompt_ms=10.0,
        predicted_n=predicted_n,
        predicted_ms=4.0 * max(predicted_n - 1, 0),
    )


def probs(text: str, *alternatives: str) -> TokenLogprobs:
    """A token that had probability one half, with alternatives of one quarter, one eighth, ..."""
    made = [TokenProb(ord(t[0]), t.encode(), log(0.5 ** (n + 1))) for n, t in enumerate((text, *alternatives))]
    return TokenLogprobs(made[0], tuple(made))


@dataclass(frozen=True, slots=True)
class Play:
    """The events of one job: its texts token by token, what was withheld until the end, and the end."""

    texts: Sequence[str] = ("He", "llo")
    rest: str = ""
    reason: FinishReason = FinishReason.EOS
    stop_word: str = ""
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    progress: Sequence[int] = ()
    cache_n: int = 0
    truncated: bool = False

    def events(self, job: Job) -> Iterator[Event]:
        n_prompt, known = len(job.prompt), dict(enumerate(self.logprobs))
        yield Started(job.id, 2, n_prompt, self.cache_n)
        for done in self.progress:
            yield Progress(job.id, 2, n_prompt, self.cache_n, done, 1.5)
        for index, entry in enumerate(self.prompt_logprobs):
            yield PromptLogprobs(job.id, 2, index + 1, (entry,))
        for index, text in enumerate(self.texts):
            token = ord(text[0]) if text else 65
            yield Token(job.id, 2, token, text, self._timings(n_prompt, index + 1), known.get(index))
        yield Finished(
            id=job.id,
            slot=2,
            reason=self.reason,
            text=self.rest,
            timings=self._timings(n_prompt, len(self.texts)),
            stop_word=self.stop_word,
            truncated=self.truncated,
            n_past=n_prompt + len(self.texts),
        )

    def _timings(self, n_prompt: int, n: int) -> Timings:
        return timings(n, prompt_n=n_prompt - self.cache_n, cache_n=self.cache_n)


def whole(exchange: Exchange, *plays: Play) -> dict[str, object]:
    """The answer of an exchange whose jobs play so, as JSON; the last play is for all further jobs."""
    for event in _all_events(exchange, plays):
        exchange.add(event)
    answer = json.loads(json.dumps(exchange.whole(), allow_nan=False))
    assert isinstance(answer, dict)
    return answer


def frames(exchange: Exchange, *plays: Play) -> list[dict[str, object]]:
    """The JSON of all frames of a stream; `[DONE]` is left out, see `ends_with_done`."""
    return [json.loads(line) for line in lines(exchange, *plays) if line != "[DONE]"]


def lines(exchange: Exchange, *plays: Play) -> list[str]:
    """The data of all frames of a stream."""
    raw = b"".join(frame for event in _all_events(exchange, plays) for frame in exchange.frames(event))
    raw += b"".join(exchange.last_frames())
    assert raw.endswith(b"\n\n")
    parts = raw.decode().removesuffix("\n\n").split("\n\n")
    assert all(part.startswith("data: ") for part in parts)
    return [part.removeprefix("data: ") for part in parts]


def _all_events(exchange: Exchange, plays: Sequence[Play]) -> Iterator[Event]:
    for index, job in enumerate(exchange.jobs):
        yield from (plays or (Play(),))[min(index, len(plays) - 1) if plays else 0].events(job)


def at(value: object, *path: str | int) -> object:
    """What lies at a path of a JSON value."""
    for key in path:
        assert isinstance(value, dict | list), f"nothing at {key} of {value!r}"
        value = value[key]  # type: ignore[index]
    return value
