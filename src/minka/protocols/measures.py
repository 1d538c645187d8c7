"""Timings, usage, progress and probabilities as llama-server and OpenAI write them."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp

from minka.types import Progress, Timings, TokenLogprobs, TokenProb


def _rate(count: int, milliseconds: float) -> float:
    return count / milliseconds * 1e3 if count > 0 and milliseconds > 0 else 0.0


def _each(milliseconds: float, count: int) -> float:
    return milliseconds / count if count > 0 else 0.0


def timings_object(timings: Timings) -> dict[str, float]:
    """llama-server's `timings`. The first predicted token comes with the prompt, so rates count one token less."""
    steps = timings.predicted_n - 1
    body: dict[str, float] = {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _each(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _rate(timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _each(timings.predicted_ms, steps),
        "predicted_per_second": _rate(steps, timings.predicted_ms),
    }
    if timings.deadline:
        body["deadline"] = True
    if timings.draft_n:
        body |= {"draft_n": timings.draft_n, "draft_n_accepted": timings.draft_n_accepted}
    return body


def usage_object(prompts: Iterable[Timings], completions: Iterable[Timings]) -> dict[str, object]:
    """OpenAI's `usage`: `prompts` has one entry a prompt, `completions` one a choice."""
    prompts = tuple(prompts)
    n_prompt = sum(timings.cache_n + timings.prompt_n for timings in prompts)
    n_completion = sum(timings.predicted_n for timings in completions)
    return {
        "completion_tokens": n_completion,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_completion,
        "prompt_tokens_details": {"cached_tokens": sum(timings.cache_n for timings in prompts)},
    }


def progress_object(progress: Progress) -> dict[str, float]:
    """llama-server's `prompt_progress`."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
    }


def progress_members(progress: Progress, *, timings: bool) -> dict[str, object]:
    """What a chunk says of a prompt that is being computed, with the `timings` so far if they are wanted."""
    members: dict[str, object] = {"prompt_progress": progress_object(progress)}
    if timings:
        n_computed = progress.processed - progress.cached
        elapsed = progress.time_ms if n_computed else 0.0
        members["timings"] = timings_object(Timings(progress.cached, prompt_n=n_computed, prompt_ms=elapsed))
    return members


def logprob_object(probs: TokenLogprobs, *, with_id: bool = False) -> dict[str, object]:
    """A token's entry in `logprobs.content`; llama-server's own route adds the ids."""
    return _logprob(probs.chosen, with_id) | {"top_logprobs": [_logprob(prob, with_id) for prob in probs.top]}


def prob_object(probs: TokenLogprobs) -> dict[str, object]:
    """A token's entry with probabilities after sampling, as `post_sampling_probs` asks for."""
    return _prob(probs.chosen) | {"top_probs": [_prob(prob) for prob in probs.top]}


def _token(prob: TokenProb, with_id: bool) -> dict[str, object]:
    entry: dict[str, object] = {"id": prob.id} if with_id else {}
    return entry | {"token": prob.piece.decode("utf-8", "ignore"), "bytes": list(prob.piece)}


def _logprob(prob: TokenProb, with_id: bool) -> dict[str, object]:
    return _token(prob, with_id) | {"logprob": prob.logprob}


def _prob(prob: TokenProb) -> dict[str, object]:
    return _token(prob, with_id=True) | {"prob": exp(prob.logprob)}
