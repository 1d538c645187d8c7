"""The log probabilities of prompts through engine and libllama, against teacher forcing straight from the logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from minka.engine.engine import Engine, EngineConfig
from minka.engine.inbox import ThreadInbox
from minka.engine.memory import MemoryConfig
from minka.native.context import Context
from minka.native.model import Model
from minka.native.protocol import Decoded
from minka.params import ContextParams, ModelParams, SamplingParams
from minka.types import Failed, Finished, Job, PromptLogprobs
from tests.tiny_fixtures import TinyModels

STORY = "Once upon a time there was a small boat. " * 9
PROMPTS = (STORY, "A bird sang. " + STORY, "Hi", STORY[:40])


def context(model: Model, **fields: object) -> Context:
    """A context whose numbers do not depend on the shape of a batch by more than a float32's last digits."""
    params = {"n_ctx": 4096, "threads": 1, "warmup": False, "flash_attn": "off", **fields}
    return Context(model, ContextParams(**params, cache_type_k="f32", cache_type_v="f32"))  # type: ignore[arg-type]


def forced(context: Context, tokens: Sequence[int]) -> list[float]:
    """The definition: one token at a time, and the log softmax of each row at the token that follows."""
    found = []
    context.clear()
    for place, token in enumerate(tokens[:-1]):
        row = context.add(0, [token], place, logits=1)
        assert context.decode() is Decoded.OK
        logits = context.logits(row).astype(np.float64)
        found.append(float(logits[tokens[place + 1]] - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
    return found


@pytest.mark.parametrize("name", ["llama", "bpe", "recurrent", "swa"])
@pytest.mark.parametrize("n_batch", [2048, 100])
def test_prompts_scored_at_once_have_the_probabilities_of_teacher_forcing(
    tiny_models: TinyModels, name: str, n_batch: int
) -> None:
    model = Model.load(tiny_models(name), ModelParams())
    alone = context(model)
    prompts = [model.vocab.tokenize(text, add_special=True, parse_special=False) for text in PROMPTS]
    wanted = [forced(alone, prompt) for prompt in prompts]
    alone.close()
    engine = Engine(context(model, n_batch=n_batch, parallel=3), EngineConfig(memory=MemoryConfig(limit=1 << 26)))
    inbox, told = ThreadInbox(), {str(n): list[float]() for n in range(2 * len(prompts))}
    for n in range(2 * len(prompts)):  # the second time what they begin with is in the cache
        job = Job(
            str(n), tuple(prompts[n % len(prompts)]), SamplingParams(temperature=0), n_predict=3, prompt_logprobs=1
        )
        engine.submit(job, inbox)
    n_open = len(told)
    while n_open:
        event = inbox.get()
        assert not isinstance(event, Failed), event
        n_open -= isinstance(event, Finished)
        if isinstance(event, PromptLogprobs):
            told[event.id] += [entry.chosen.logprob for entry in event.entries]
    for n in range(2 * len(prompts)):
        expected = wanted[n % len(prompts)]
        assert told[str(n)] == pytest.approx(expected, abs=1e-3)
        assert sum(told[str(n)]) == pytest.approx(sum(expected), abs=1e-3)
    engine.close()
    model.close()
