from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from minka.errors import ModelError, NativeError
from minka.native.model import Model
from minka.native.own_thread import OwnThread
from minka.native.raw import Adapter, RawContext, TokenList, Tokens, is_causal, tokenize
from minka.native.threadpool import Pinning
from minka.params import ContextParams, ModelParams
from tests.tiny_fixtures import TinyModels
from tests.tools.oracle import Oracle

ALL = slice(None)
Make = Callable[..., RawContext]


@pytest.fixture(scope="module")
def model(tiny_models: TinyModels) -> Iterator[Model]:
    loaded = Model.load(tiny_models("llama"), ModelParams())
    yield loaded
    loaded.close()


@pytest.fixture
def make(model: Model) -> Iterator[Make]:
    made: list[RawContext] = []

    def context(n_seq_max: int = 1, *, n_batch: int = 2048, unified: bool = False, **options: object) -> RawContext:
        params = ContextParams(n_ctx=256, n_batch=n_batch, threads=1, kv_unified=unified)
        made.append(RawContext(model, params, n_seq_max=n_seq_max, **options))  # type: ignore[arg-type]
        return made[-1]

    yield context
    for one in made:
        one.close()


def run(tokens: list[int], pos: int = 0, seqs: tuple[int, ...] = (0,), outputs: slice | None = ALL) -> Tokens:
    built = TokenList()
    built.add(tokens, pos, seqs, outputs)
    return built.tokens()


def test_all_logits_of_a_batch_are_those_of_one_token_at_a_time(make: Make, tiny_models: TinyModels) -> None:
    tokens = [1, 300, 301, 302, 303]
    context = make()
    context.decode(batch := context.prepare(run(tokens)))
    with Oracle(tiny_models("llama")) as oracle:
        expected = oracle.logits(tokens)
    assert context.logits(batch.n_outputs) == pytest.approx(expected, abs=0.05)


def test_only_outputs_have_logits(make: Make) -> None:
    context = make()
    context.decode(batch := context.prepare(run([1, 300, 301, 302], outputs=slice(2, None))))
    assert batch.n_outputs == 2
    assert context.logits(2).shape == (2, 512)
    context.clear(data=False)
    context.decode(context.prepare(run([1, 300], outputs=None)))
    assert context.logits(0).shape == (0, 512)


def test_sequences_may_share_tokens_in_a_unified_cache(make: Make) -> None:
    context = make(2, unified=True)
    built = TokenList()
    built.add([1, 300, 301], 0, (0, 1), slice(2, None))
    built.add([302], 3, (0,), ALL)
    built.add([303], 3, (1,), ALL)
    context.decode(batch := context.prepare(built.tokens()))
    shared = context.logits(batch.n_outputs).copy()
    assert (context.length(0), context.length(1)) == (4, 4)
    for row, last in ((1, 302), (2, 303)):
        context.clear(data=True)
        context.decode(context.prepare(run([1, 300, 301, last], outputs=slice(3, None))))
        assert context.logits(1)[0] == pytest.approx(shared[row], abs=0.05)


def test_a_part_of_the_tokens_is_a_batch_of_its_own(make: Make) -> None:
    context, tokens = make(), run([1, 300, 301, 302, 303])
    assert len(tokens.part(2, 5)) == 3
    context.decode(context.prepare(tokens))
    whole = context.logits(5)[4].copy()
    context.clear(data=True)
    for part in (tokens.part(0, 2), tokens.part(2, 5)):
        context.decode(context.prepare(part))
    assert context.logits(3)[2] == pytest.approx(whole, abs=0.05)


def test_a_batch_is_decoded_step_by_step_with_other_tokens(make: Make) -> None:
    context = make()
    one = context.prepare(run([0]))
    context.generate(one, np.array([[1], [300], [301]], np.int32))
    stepwise = context.logits(1)[0].copy()
    assert context.length(0) == 3
    context.clear(data=True)
    context.decode(context.prepare(run([1, 300, 301], outputs=slice(2, None))))
    assert context.logits(1)[0] == pytest.approx(stepwise, abs=0.05)


def test_a_sequence_can_be_copied_cut_saved_and_restored(make: Make) -> None:
    context = make(2, unified=True)
    context.decode(context.prepare(run([1, 300, 301, 302])))
    context.copy_sequence(0, 1)
    context.cut(0, 2)
    assert (context.length(0), context.length(1)) == (2, 4)
    state = context.save(1)
    context.clear(data=True)
    assert context.length(1) == 0
    assert context.restore(0, state)
    assert context.length(0) == 4
    assert not context.restore(0, state[:10])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (run([512]), "token"),
        (run([-1]), "token"),
        (run([1], pos=256), "position"),
        (run([1], pos=-1), "position"),
        (run([1], seqs=(1,)), "sequence"),
        (run([1], seqs=(-1,)), "sequence"),
        (run([1] * 65), "1 to 64 tokens, not 65"),
        (run([1]).part(0, 0), "1 to 64 tokens, not 0"),
    ],
)
def test_what_libllama_could_not_bear_is_refused(make: Make, tokens: Tokens, message: str) -> None:
    with pytest.raises(NativeError, match=message):
        make(n_batch=64).prepare(tokens)


def test_a_full_cache_is_an_error_and_not_the_end(make: Make) -> None:
    context = make(2, unified=True)
    context.decode(context.prepare(run([1] * 200)))
    with pytest.raises(NativeError, match="no room for a batch of 200"):
        context.decode(context.prepare(run([1] * 200, seqs=(1,))))
    context.decode(context.prepare(run([1] * 20, seqs=(1,))))


def test_a_wrong_position_is_an_error(make: Make) -> None:
    context = make()
    batch = context.prepare(run([1, 300]))
    context.decode(batch)
    with pytest.raises(NativeError, match=r"could not compute a batch of 2 tokens \(code -1\)"):
        context.decode(batch)


@pytest.mark.parametrize("n_seq_max", [0, 257])
def test_too_many_sequences_are_refused(make: Make, n_seq_max: int) -> None:
    with pytest.raises(ModelError, match="parallel sequences"):
        make(n_seq_max)


def test_a_cache_that_cannot_fit_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minka.native.raw.available_memory", lambda: 1 << 20)
    with pytest.raises(ModelError, match="GiB of memory are free"):
        RawContext(model, ContextParams(n_ctx=1 << 20, threads=1))


def test_threads_of_its_own_compute_the_same(make: Make) -> None:
    tokens, rows = run([1, 300, 301]), []
    for options in ({}, {"pinning": Pinning(poll=0)}, {"pinning": Pinning(), "batch_pinning": Pinning(strict=True)}):
        context = make(**options)
        context.decode(context.prepare(tokens))
        rows.append(context.logits(3).copy())
        context.close()
    assert rows[1] == pytest.approx(rows[0], abs=0.05)
    assert rows[2] == pytest.approx(rows[0], abs=0.05)


def test_a_closed_context_is_closed(make: Make) -> None:
    context = make()
    context.close()
    context.close()
    for use in (lambda: context.prepare(run([1])), lambda: context.length(0), lambda: context.logits(1)):
        with pytest.raises(NativeError, match="closed"):
            use()


def test_adapters_change_the_logits_by_their_scale(make: Make, tiny_models: TinyModels) -> None:
    context, rows = make(), []
    for adapters in ((), ((1.0,)), ((0.0,)), (0.5, 0.5)):
        context.adapt([Adapter(tiny_models("lora"), scale) for scale in adapters])
        context.clear(data=True)
        context.decode(context.prepare(run([1, 300, 301])))
        rows.append(context.logits(3).copy())
    assert abs(rows[1] - rows[0]).max() > 1
    assert rows[2] == pytest.approx(rows[0], abs=0.05)
    assert rows[3] == pytest.approx(rows[1], abs=0.05)


@pytest.mark.parametrize("name", ["llama", "not-gguf", "missing"])
def test_a_file_that_is_no_adapter_is_named(make: Make, tiny_models: TinyModels, name: str) -> None:
    path = Path("missing.gguf") if name == "missing" else tiny_models(name)
    with pytest.raises(ModelError, match=r"cannot load the LoRA adapter .*\.gguf"):
        make().adapt([Adapter(path)])


def test_an_aborted_decode_stops_and_the_context_goes_on(make: Make) -> None:
    context = make()
    context.abort()
    with pytest.raises(NativeError, match="stopped"):
        context.decode(context.prepare(run([1, 300])))
    context.resume()
    context.clear(data=True)
    context.decode(context.prepare(run([1, 300])))


def test_an_interrupt_stops_the_other_thread(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context, deciding = make(), threading.Event()
    outcome: list[object] = []

    def work() -> None:
        deciding.wait()
        try:
            context.decode(context.prepare(run([1, 300])))
        except NativeError as error:
            outcome.append(error)

    def interrupted(self: object, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    real_abort = context.abort

    def abort() -> None:
        real_abort()
        deciding.set()

    monkeypatch.setattr(context, "abort", abort)
    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)
    with OwnThread() as thread, pytest.raises(KeyboardInterrupt):
        thread.run(context, work)
    assert isinstance(outcome[0], NativeError)
    context.clear(data=True)
    context.decode(context.prepare(run([1, 300])))


def test_what_the_other_thread_raises_or_returns_is_handed_on(make: Make) -> None:
    context = make()
    names: set[str] = set()
    with OwnThread() as thread:
        for _ in range(3):
            names.add(thread.run(context, lambda: threading.current_thread().name))
        with pytest.raises(ZeroDivisionError):
            thread.run(context, lambda: 1 / 0)
    assert len(names) == 1
    assert threading.current_thread().name not in names


def test_texts_of_any_bytes_are_tokenized(model: Model) -> None:
    assert tokenize(model.vocab, b"hello").tolist() == model.vocab.tokenize(
        "hello", add_special=True, parse_special=False
    )
    assert tokenize(model.vocab, b"").tolist() == [model.vocab.bos]
    assert len(tokenize(model.vocab, b"\xff\xfe")) == 3  # bos and two bytes


@pytest.mark.parametrize(("name", "causal"), [("llama", True), ("recurrent", True), ("bert", False)])
def test_encoders_are_told_apart(tiny_models: TinyModels, name: str, causal: bool) -> None:
    loaded = Model.load(Path(tiny_models(name)), ModelParams())
    assert is_causal(loaded) is causal
    loaded.close()
