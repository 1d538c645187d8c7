from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Thread

import pytest

from minka.chat.messages import Message
from minka.chat.template import ChatTemplate
from minka.engine.engine import Engine
from minka.errors import ContextSizeError, NativeError
from minka.params import GenerationParams, SamplingParams
from minka.protocols.served import ModelFacts, Served
from minka.terminal.answer import Answer, ModelResponder, Stopper, all_tokens, make_job, run_job
from minka.terminal.tuning import Tuning
from minka.types import FinishReason, Job, Progress
from tests.fakes import BOS, EOS, FakeBackend, FakeVocab, scripted, tokens_of

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}{{ extra }}a:"
GREEDY = Tuning(SamplingParams(temperature=0), GenerationParams())


@contextmanager
def opened(backend: FakeBackend) -> Iterator[Engine]:
    with backend, closing(Engine(backend)) as engine:
        yield engine


def job(prompt: str, n_predict: int = -1, stop: tuple[str, ...] = ()) -> Job:
    tuning = Tuning(GREEDY.sampling, GenerationParams(n_predict=n_predict, stop=stop))
    return make_job("j", tokens_of(prompt), tuning)


def run(backend: FakeBackend, wanted: Job) -> tuple[Answer, list[str]]:
    shown: list[str] = []
    with opened(backend) as engine, Stopper() as stopper:
        return run_job(engine, wanted, shown.append, stopper), shown


def test_an_answer_is_all_the_text_that_was_shown() -> None:
    answer, shown = run(FakeBackend(scripted({"hi": "olé 🙂"})), job("hi"))
    assert answer.text == "".join(shown) == "olé 🙂"
    assert answer.reason is FinishReason.EOS
    assert answer.exit_code == 0
    assert all(shown)


def test_withheld_text_comes_at_the_end() -> None:
    answer, shown = run(FakeBackend(scripted({"hi": "a\n\nUse"})), job("hi", stop=("\n\nUser:",)))
    assert shown == ["a", "\n\nUse"]
    assert answer.text == "a\n\nUse"


def test_the_end_of_the_context_and_a_limit_are_told_apart() -> None:
    full, _ = run(FakeBackend(n_ctx=20, n_seq_max=1), job("hello"))
    assert (full.reason, full.is_full) == (FinishReason.LIMIT, True)
    cut, _ = run(FakeBackend(n_ctx=20, n_seq_max=1), job("hello", 3))
    assert (cut.reason, cut.is_full, cut.timings.predicted_n) == (FinishReason.LIMIT, False, 3)


def test_an_error_of_the_job_is_raised() -> None:
    backend = FakeBackend(fail=lambda chunks: chunks[0].pos > 4)
    with pytest.raises(NativeError, match="scripted failure"):
        run(backend, job("hello"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_answer_and_keeps_what_there_is(number: signal.Signals) -> None:
    backend, shown = FakeBackend(), list[str]()
    backend.gate.let(4)

    def interrupt() -> None:
        backend.gate.wait_held()
        os.kill(os.getpid(), number)
        # The engine handles the cancellation before its next step, so one more token may still come.
        backend.gate.open()

    helper = Thread(target=interrupt)
    with opened(backend) as engine, Stopper() as stopper:
        helper.start()
        answer = run_job(engine, job("hello"), shown.append, stopper)
        helper.join()
        assert engine.n_open == 0
    assert answer.reason is None
    assert answer.signal == number
    assert answer.exit_code == 128 + number
    assert answer.text == "".join(shown)
    assert len(answer.text) >= 3
    assert answer.n_past == 5 + answer.timings.predicted_n


def test_the_next_job_runs_after_a_stopped_one() -> None:
    backend = FakeBackend(n_seq_max=1)
    with opened(backend) as engine:
        with Stopper() as stopper:
            os.kill(os.getpid(), signal.SIGINT)
            stopped = run_job(engine, job("hello"), lambda _: None, stopper)
        with Stopper() as stopper:
            answer = run_job(engine, job("hello", 3), lambda _: None, stopper)
    assert stopped.reason is None
    assert answer.reason is FinishReason.LIMIT


def test_a_signal_that_came_too_early_stops_the_work_when_it_begins() -> None:
    calls: list[str] = []
    with Stopper() as stopper:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopper.signal == signal.SIGINT
        stopper.arm(lambda: calls.append("stopped"))
    assert calls == ["stopped"]


def test_an_impatient_second_press_is_the_same_and_a_later_one_ends_the_program() -> None:
    now, calls = [10.0], list[str]()
    with Stopper(lambda: now[0]) as stopper:
        stopper.arm(lambda: calls.append("stopped"))
        os.kill(os.getpid(), signal.SIGINT)
        now[0] += 0.9
        os.kill(os.getpid(), signal.SIGINT)
        assert calls == ["stopped"]
        now[0] += 0.2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), Stopper():
        _ = 1 / 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_error_while_showing_cancels_the_job() -> None:
    def fail(_text: str) -> None:
        raise BrokenPipeError

    with opened(FakeBackend()) as engine:
        with pytest.raises(BrokenPipeError), Stopper() as stopper:
            run_job(engine, job("hello"), fail, stopper)
        engine.view().result()  # the engine has seen the cancellation by now
        assert engine.n_open == 0


# -- a conversation --------------------------------------------------------------------------------------------------


def served(kwargs: dict[str, object] | None = None) -> Served:
    facts = ModelFacts("p", "n", (), (), "d", "f", 1, 4096, 1, 1, 1)
    return Served(
        model=facts,
        tokenizer=FakeVocab(),
        template=ChatTemplate(TEMPLATE, bos_token="", eos_token=""),
        n_ctx=512,
        n_slots=1,
        max_jobs=1,
        created=0,
        build="b",
        sampling=GREEDY.sampling,
        generation=GREEDY.generation,
        prefill_assistant=True,
        template_kwargs=kwargs or {},
    )


def respond(
    backend: FakeBackend,
    *turns: str,
    special: bool = False,
    kwargs: dict[str, object] | None = None,
    tuning: Tuning = GREEDY,
    watch: Callable[[Progress], None] | None = None,
) -> list[Answer]:
    """The answers to some messages of one conversation."""
    messages: list[Message] = []
    answers: list[Answer] = []
    with opened(backend) as engine:
        responder = ModelResponder(engine, served(kwargs), special=special)
        for text in turns:
            messages.append(Message("user", text))
            with Stopper() as stopper:
                answers.append(responder.answer(messages, tuning, lambda _: None, stopper, watch))
            messages.append(Message("assistant", answers[-1].text))
    return answers


def test_a_conversation_is_rendered_with_the_template_of_the_model() -> None:
    replies = {"u:hi\na:": "yes", "u:hi\na:yes\nu:more\na:": "no"}
    assert [answer.text for answer in respond(FakeBackend(scripted(replies)), "hi", "more")] == ["yes", "no"]


def test_the_second_turn_computes_only_what_is_new() -> None:
    replies = {"u:hi\na:": "yes", "u:hi\na:yes\nu:more\na:": "no"}
    first, second = respond(FakeBackend(scripted(replies)), "hi", "more")
    assert first.timings.cache_n == 0
    assert second.timings.cache_n >= len("u:hi\na:yes")


def test_template_variables_of_the_command_line_are_used() -> None:
    backend = FakeBackend(scripted({"u:hi\n!a:": "yes"}))
    assert respond(backend, "hi", kwargs={"extra": "!"})[0].text == "yes"


def test_special_tokens_are_text_only_if_asked_for() -> None:
    script = scripted({"u:hi\na:": [ord("a"), BOS, ord("b")]})
    assert respond(FakeBackend(script), "hi")[0].text == "ab"
    assert respond(FakeBackend(script), "hi", special=True)[0].text == "a<s>b</s>"


def test_progress_is_reported_to_who_watches() -> None:
    seen: list[tuple[int, int]] = []
    backend = FakeBackend(scripted({"u:hi\na:": "yes"}), n_batch=4)
    respond(backend, "hi", watch=lambda progress: seen.append((progress.processed, progress.total)))
    assert seen[0] == (0, 7)
    assert seen[-1] == (7, 7)


def test_a_conversation_that_is_too_long_says_how_long() -> None:
    with pytest.raises(ContextSizeError) as raised:
        respond(FakeBackend(n_ctx=64, n_seq_max=1), "x" * 100)
    assert (raised.value.n_prompt_tokens, raised.value.n_ctx) == (105, 64)


def test_tuning_reaches_the_job() -> None:
    tuning = Tuning(
        SamplingParams(seed=3, top_k=7),
        GenerationParams(n_predict=5, close_at_limit=True, stop=("x",), t_max_predict_ms=9, cache_prompt=False),
    )
    made = make_job("id", [1, 2], tuning, preserved=frozenset({EOS}), return_progress=True)
    assert made == Job(
        "id",
        (1, 2),
        SamplingParams(seed=3, top_k=7),
        n_predict=5,
        close_at_limit=True,
        stop=("x",),
        t_max_predict_ms=9,
        cache_prompt=False,
        return_progress=True,
        preserved_tokens=frozenset({EOS}),
    )


def test_all_tokens_are_all() -> None:
    assert all_tokens(FakeVocab()) == frozenset(range(FakeVocab().n_tokens))
