"""The prefix cache on libllama: whatever memory and disk bring back, a text is the one that is computed from nothing.

Greedy texts are compared token by token with those of a context that never reuses anything. Flash attention is off, so
that equal computations are equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from minka.engine.engine import Engine, EngineConfig
from minka.engine.loop import Loop
from minka.engine.memory import Memory, MemoryConfig
from minka.engine.outbox import Outbox
from minka.engine.slot import Run
from minka.native.context import Context
from minka.native.model import Model
from minka.native.protocol import Decoded
from minka.params import ContextParams
from minka.types import Counters, Finished, Job, Started, Token
from tests import tiny
from tests.engine.rig import Recorder, job
from tests.engine.test_engine import Ends
from tests.fakes import WAIT
from tests.native.conftest import ON_CPU, SMALL

Contexts = Callable[..., Context]
MODELS = ["llama", "swa", "recurrent", "hybrid"]
TURNS, N_PREDICT = 3, 8
ROOMY = MemoryConfig(limit=1 << 24, block=16, step=32)
Talk = list[tuple[tuple[int, ...], list[int]]]
"""The turns of a conversation: prompt, answer."""


def openings(n: int) -> list[list[int]]:
    """First prompts, most of which share their first 40 tokens."""
    choose = random.Random(8)
    stem = [1, *(choose.randrange(260, 500) for _ in range(39))]
    own = [[choose.randrange(260, 500) for _ in range(choose.choice((3, 20, 37)))] for _ in range(n)]
    return [(stem if i % 4 else [1, *own[i], *own[-1]]) + own[i] for i in range(n)]


def questions(talk: int, turn: int) -> list[int]:
    """What is asked in a turn; the same in some conversations."""
    choose = random.Random(f"{talk % 3} {turn}")
    return [choose.randrange(260, 500) for _ in range(7)]


OPENINGS = openings(5)


@pytest.fixture(scope="module")
def expected(load: Callable[[str], Model]) -> Callable[[str], list[Talk]]:
    """The conversations with a model, each answer computed from nothing."""
    known: dict[str, list[Talk]] = {}

    def talks(name: str) -> list[Talk]:
        if name not in known:
            params = ContextParams(**{**SMALL, "n_ctx": 256, "parallel": 1})  # type: ignore[arg-type]
            with closing(Context(load(name), params)) as context:
                known[name] = [talk_alone(context, i) for i in range(len(OPENINGS))]
        return known[name]

    return talks


def talk_alone(context: Context, i: int) -> Talk:
    talk: Talk = []
    prompt = OPENINGS[i]
    for turn in range(TURNS):
        talk.append((tuple(prompt), greedy(context, prompt)))
        prompt = [*prompt, *talk[-1][1], *questions(i, turn)]
    return talk


def greedy(context: Context, prompt: Sequence[int], n: int = N_PREDICT) -> list[int]:
    context.clear()
    row, answer = context.add(0, prompt, 0, logits=1), list[int]()
    while True:
        assert context.decode() is Decoded.OK
        answer.append(int(context.logits(row).argmax()))
        if len(answer) == n:
            return answer
        row = context.add(0, answer[-1:], context.length(0), logits=1)


class Served(Ends):
    """The engine under test, and what it served."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    def talk(self, talks: Sequence[Talk], *, together: bool = False, suffix: str = "", **fields: object) -> None:
        """Serve the conversations turn by turn, one after the other or all at once, and compare every answer."""
        for turn in range(TURNS):
            ids = [f"{i}.{turn}{suffix}" for i in range(len(talks))]
            for id, talk in zip(ids, talks, strict=True):
                self.engine.submit(job(id, talk[turn][0], N_PREDICT, **fields), self)
                if not together:
                    self.wait()
            if together:
                self.wait(len(talks))
            for id, talk in zip(ids, talks, strict=True):
                assert isinstance(self.end(id), Finished), self.end(id)
                assert self.tokens(id) == talk[turn][1], f"{id} differs from what it is without a cache"

    def cached(self, id: str) -> int:
        return self.started(id).n_cached

    @property
    def counters(self) -> Counters:
        return self.engine.view().result(WAIT).counters


@contextmanager
def serving(backend: Context, memory: MemoryConfig, disk: Path | None = None) -> Iterator[Served]:
    engine = Engine(backend, EngineConfig(check=True, memory=memory, disk=disk, disk_limit=1 << 30))
    try:
        yield Served(engine)
    finally:
        engine.close()


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [30_000, 1 << 24])
@pytest.mark.parametrize("name", MODELS)
def test_conversations_take_turns_on_two_slots(
    context: Contexts, expected: Callable[[str], list[Talk]], unified: bool, name: str, limit: int
) -> None:
    talks = expected(name)
    backend = context(name, n_ctx=512, parallel=2, kv_unified=unified, n_batch=48)
    with serving(backend, replace(ROOMY, limit=limit)) as served:
        served.talk(talks)
        if limit > 30_000:
            assert served.counters.recalled_tokens > 0
            for i, talk in enumerate(talks):
                for turn in range(1, TURNS):
                    # All but the last token of the answer, which nobody computed, and the new question.
                    assert served.cached(f"{i}.{turn}") >= len(talk[turn][0]) - 7 - 1


@pytest.mark.parametrize("clear_idle", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_conversations_come_together_and_there_is_too_little_room(
    context: Contexts, expected: Callable[[str], list[Talk]], unified: bool, name: str, clear_idle: bool
) -> None:
    talks = expected(name)
    backend = context(name, n_ctx=256 if unified else 768, parallel=3, kv_unified=unified, n_batch=32, n_ubatch=16)
    with serving(backend, replace(ROOMY, limit=100_000, clear_idle=clear_idle)) as served:
        served.talk(talks, together=True)


class Stepped(Recorder):
    """A loop of which a test knows what comes in the same step."""

    def __init__(self, backend: Context, memory: MemoryConfig) -> None:
        super().__init__()
        assert backend.sliceable
        kept = Memory(backend, memory)
        self.loop = Loop(backend, Outbox(lambda _id: None), max_gap=0.2, memory=kept)

    def run(self, *jobs: Job) -> None:
        for one in jobs:
            self.loop.queue.put(Run(one, self, 0, 0.0))
        while self.loop.busy:
            self.loop.step()
            self.loop.check()


def test_a_text_that_lost_its_cells_goes_on_from_memory(context: Contexts) -> None:
    """Three texts outgrow the pool: some give way, come back, and are what they are alone."""
    prompts = [[1, *range(260 + 40 * i, 290 + 40 * i)] for i in range(3)]
    jobs = [job(str(i), prompt, 60) for i, prompt in enumerate(prompts)]
    fresh = context(n_ctx=256, parallel=1)
    for limit in (0, 1 << 24):
        stepped = Stepped(context(n_ctx=128, parallel=3, n_batch=32), replace(ROOMY, limit=limit))
        stepped.run(*jobs)
        assert stepped.loop.counters.preempted > 0
        for one in jobs:
            assert stepped.tokens(one.id) == greedy(fresh, one.prompt, 60)


def test_a_restore_does_not_overtake_a_copy_between_streams(context: Contexts) -> None:
    """Two jobs in one step: one copies a stream, the other is known and gets the slot that is copied from."""
    choose = random.Random(3)
    first, second, long = ([1, *(choose.randrange(260, 500) for _ in range(50))] for _ in range(3))
    stepped = Stepped(context(n_ctx=1024, parallel=2, kv_unified=False), ROOMY)
    fresh = context(n_ctx=256, parallel=1)
    for id, prompt in (("known", first), ("other", second)):
        stepped.run(job(id, prompt, 2))
    for i in range(6):
        stepped.run(job(f"long {i}", [*long, *long, *long, 400 + i], 2))
        both = {f"copies {i}": [*long[: 45 - i], 300 + i], f"recalls {i}": [*first, 300 + i]}
        stepped.run(*(job(id, prompt, N_PREDICT) for id, prompt in both.items()))
        for id, prompt in both.items():
            assert stepped.tokens(id) == greedy(fresh, prompt)


# -- disk --------------------------------------------------------------------------------------------------------------


def test_a_new_process_starts_from_the_disk(
    context: Contexts, expected: Callable[[str], list[Talk]], unified: bool, tmp_path: Path
) -> None:
    """The second one has the other layout: blocks know neither sequences nor cells."""
    talks = expected("llama")
    with serving(context(n_ctx=512, parallel=2, kv_unified=unified), ROOMY, tmp_path) as served:
        served.talk(talks)
    with serving(context(n_ctx=512, parallel=2, kv_unified=not unified), ROOMY, tmp_path) as served:
        last = [talk[-1] for talk in talks]
        for i, (prompt, answer) in enumerate(last):
            served.engine.submit(job(str(i), prompt, N_PREDICT), served)
            served.wait()
            assert served.tokens(str(i)) == answer
            assert served.cached(str(i)) == len(prompt) - 1
    with serving(context(n_ctx=512, parallel=2, kv_unified=unified), ROOMY, tmp_path) as served:
        served.talk(talks, cache_salt="salt", suffix=" salted")
        assert served.cached("0.0 salted") == 0
        served.talk(talks)


def test_memory_may_be_far_smaller_than_what_the_disk_has(
    context: Contexts, expected: Callable[[str], list[Talk]], unified: bool, tmp_path: Path
) -> None:
    talks = expected("llama")
    little = replace(ROOMY, limit=5_000)  # bytes; a token takes 256
    with serving(context(n_ctx=512, parallel=2, kv_unified=unified), little, tmp_path) as served:
        served.talk(talks)
        for i, talk in enumerate(talks):
            assert served.cached(f"{i}.2") >= len(talk[2][0]) - 7 - 1
        assert served.engine._archive is not None
        assert served.engine._archive.n_read > 0


@pytest.mark.parametrize("name", ["swa", "recurrent", "hybrid"])
def test_states_that_cannot_be_cut_stay_off_the_disk(
    context: Contexts, expected: Callable[[str], list[Talk]], name: str, tmp_path: Path
) -> None:
    with serving(context(name, n_ctx=512, parallel=2), ROOMY, tmp_path) as served:
        served.talk(expected(name)[:2])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_read_of_another_model_or_kind_of_cache(context: Contexts, load: object, tmp_path: Path) -> None:
    prompt = (*OPENINGS[1], 300)
    disk = tmp_path / "disk"

    def n_cached(backend: Context) -> int:
        with serving(backend, ROOMY, disk) as served:
            events = list(served.engine.stream(job("a", prompt, 2)))
        return next(event.n_cached for event in events if isinstance(event, Started))

    kinds: list[dict[str, object]] = [
        {},
        {"cache_type_k": "f32"},
        {"cache_type_v": "f32"},
        {"cache_type_k": "q8_0"},
        {"rope_freq_base": 5000.0},
        {"rope_freq_scale": 0.5},
    ]
    for kind in kinds:
        assert n_cached(context(n_ctx=256, **kind)) == 0, f"{kind} read what was computed otherwise"
    with ExitStack() as models:
        # The same shapes, other weights; the same weights under another name.
        for seed, cached in ((1, 0), (0, len(prompt) - 1)):
            file = tiny.write_llama(tmp_path / f"{seed}.gguf", seed=seed)
            model = models.enter_context(closing(Model.load(file, ON_CPU)))
            params = ContextParams(**{**SMALL, "n_ctx": 256})  # type: ignore[arg-type]
            assert n_cached(models.enter_context(closing(Context(model, params)))) == cached
    for kind in kinds:
        assert n_cached(context(n_ctx=256, **kind)) == len(prompt) - 1, f"{kind} did not find its own"
    assert len(list(disk.iterdir())) == len(kinds) + 1


def test_files_in_the_wrong_directory_are_not_used(context: Contexts, tmp_path: Path) -> None:
    """Whoever moves files about gets no wrong text: a block says what kind of cache it is for."""
    prompt = (*OPENINGS[1], 300)
    with serving(context(n_ctx=256), ROOMY, tmp_path) as served:
        list(served.engine.stream(job("a", prompt, 2)))
    (right,) = tmp_path.iterdir()
    other = context(n_ctx=256, cache_type_k="f32")
    assert other.sliceable
    right.rename(tmp_path / other.fingerprint)
    with serving(other, ROOMY, tmp_path) as served:
        events = list(served.engine.stream(job("a", prompt, N_PREDICT)))
    fresh = context(n_ctx=256, parallel=1, cache_type_k="f32")
    assert [event.token for event in events if isinstance(event, Token)] == greedy(fresh, prompt)
    assert next(event.n_cached for event in events if isinstance(event, Started)) == 0


def test_a_damaged_file_is_computed_again(
    context: Contexts, expected: Callable[[str], list[Talk]], unified: bool, tmp_path: Path
) -> None:
    talks = expected("llama")
    with serving(context(n_ctx=512, parallel=2, kv_unified=unified), ROOMY, tmp_path) as served:
        served.talk(talks)
    (directory,) = tmp_path.iterdir()
    choose = random.Random(1)
    files = sorted(directory.iterdir())
    for path in files[::3]:
        raw = bytearray(path.read_bytes())
        raw[choose.randrange(len(raw))] ^= 1 << choose.randrange(8)
        path.write_bytes(raw[: choose.choice((len(raw), len(raw) // 2))])
    with serving(context(n_ctx=512, parallel=2, kv_unified=unified), ROOMY, tmp_path) as served:
        served.talk(talks)
        assert served.counters.recalled_tokens > 0
