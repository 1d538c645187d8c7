from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from minka.errors import ModelError, NativeError, NotFoundError
from minka.native.context import Context
from minka.native.model import Model
from minka.native.protocol import Decoded, Logits
from minka.params import ContextParams, ModelParams
from tests import tiny
from tests.tiny_fixtures import TinyModels

PROMPT = list(range(3, 20))


@pytest.fixture
def model(tiny_models: TinyModels) -> Iterator[Model]:
    made = Model.load(tiny_models("llama"), ModelParams())
    yield made
    made.close()


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    made = Context(model, ContextParams(n_ctx=256, parallel=2, threads=1, warmup=False))
    yield made
    made.close()


def last_row(context: Context) -> Logits:
    context.clear()
    row = context.add(0, PROMPT, 0, logits=1)
    assert context.decode() is Decoded.OK
    return context.logits(row).copy()


def test_an_adapter_changes_what_is_computed_by_its_factor(context: Context, tiny_models: TinyModels) -> None:
    plain = last_row(context)
    adapter = context.load_adapter(tiny_models("lora"), 1.0)
    assert np.array_equal(last_row(context), plain), "loading alone changes nothing"
    rows = {}
    for scale in (0.25, 1.0):
        context.adapt(((adapter.id, scale),))
        rows[scale] = last_row(context)
    assert 0 < np.abs(rows[0.25] - plain).max() < np.abs(rows[1.0] - plain).max()
    context.adapt(())
    assert np.array_equal(last_row(context), plain)


def test_two_adapters_work_together(context: Context, tiny_models: TinyModels, tmp_path: Path) -> None:
    other = tiny.write_lora(tmp_path / "other.gguf", base=tiny_models("llama"), seed=7)
    first, second = context.load_adapter(tiny_models("lora"), 1.0), context.load_adapter(other, 1.0)
    assert (first.id, second.id) == (0, 1)
    seen = []
    for wanted in (((0, 1.0),), ((1, 1.0),), ((0, 1.0), (1, 1.0))):
        context.adapt(wanted)
        seen.append(last_row(context))
    assert all(np.abs(a - b).max() > 0.01 for a, b in pairwise(seen))


def test_an_id_is_never_used_twice(context: Context, tiny_models: TinyModels) -> None:
    plain = last_row(context)
    first = context.load_adapter(tiny_models("lora"), 1.0)
    context.adapt(((first.id, 1.0),))
    context.unload_adapter(first.id)
    assert np.array_equal(last_row(context), plain), "an unloaded adapter is not computed with"
    assert context.load_adapter(tiny_models("lora"), 0.5).id == first.id + 1
    assert [adapter.scale for adapter in context.model.adapters.all] == [0.5]


def test_what_is_not_loaded_cannot_be_used(context: Context, tiny_models: TinyModels) -> None:
    adapter = context.load_adapter(tiny_models("lora"), 1.0)
    context.adapt(((adapter.id, 1.0),))
    adapted = last_row(context)
    with pytest.raises(NotFoundError, match="no LoRA adapter 7"):
        context.adapt(((adapter.id, 1.0), (7, 1.0)))
    assert np.array_equal(last_row(context), adapted), "a refused set changes nothing"
    with pytest.raises(NotFoundError):
        context.check_adapters(((7, 1.0),))
    with pytest.raises(NotFoundError):
        context.unload_adapter(7)


@pytest.mark.parametrize("name", ["llama", "not-gguf", "truncated"])
def test_a_file_that_is_no_adapter_is_refused(context: Context, tiny_models: TinyModels, name: str) -> None:
    with pytest.raises(ModelError, match="cannot load the adapter"):
        context.load_adapter(tiny_models(name), 1.0)
    assert context.model.adapters.all == ()


def test_an_activated_adapter_is_refused_by_name(context: Context, tiny_models: TinyModels, tmp_path: Path) -> None:
    activated = tiny.write_lora(tmp_path / "alora.gguf", base=tiny_models("llama"), invocation=(5, 6))
    with pytest.raises(ModelError, match="aLoRA"):
        context.load_adapter(activated, 1.0)
    assert context.model.adapters.all == ()


def test_the_file_tells_what_it_is_for(context: Context, tiny_models: TinyModels) -> None:
    adapter = context.load_adapter(tiny_models("lora"), 0.5)
    assert (adapter.task_name, adapter.prompt_prefix, adapter.scale) == ("tiny task", "", 0.5)


def test_an_adapter_of_another_model_is_refused(context: Context, tmp_path: Path) -> None:
    wide = tiny.write_llama(tmp_path / "wide.gguf", n_embd=128)
    foreign = tiny.write_lora(tmp_path / "foreign.gguf", base=wide)
    with pytest.raises(ModelError, match="cannot load the adapter"):
        context.load_adapter(foreign, 1.0)
    with pytest.raises(ModelError, match="there is no such file"):
        context.load_adapter(tmp_path / "nothing.gguf", 1.0)


def test_every_token_of_a_prompt_can_have_a_row(context: Context) -> None:
    """And the rows are those that the same text gives one token at a time."""
    n = len(PROMPT)
    last = context.add(0, PROMPT, 0, logits=n)
    assert context.decode() is Decoded.OK
    rows = [context.logits(last - n + 1 + place).copy() for place in range(n)]
    for place, token in enumerate(PROMPT):
        row = context.add(1, [token], place, logits=1)
        assert context.decode() is Decoded.OK
        assert np.abs(context.logits(row) - rows[place]).max() < 5e-3


def test_rows_have_a_bound_that_fits_every_sequence(context: Context) -> None:
    assert context.n_seq_max + 64 <= context.n_rows <= context.n_batch
    with pytest.raises(NativeError, match="logits rows"):
        context.add(0, [3] * (context.n_rows + 1), 0, logits=context.n_rows + 1)
