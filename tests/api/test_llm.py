from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import minka
from minka import LLM, RequestOutput, SamplingParams
from minka.engine.engine import Engine
from minka.errors import ContextSizeError, MinkaError, NativeError, RequestError, UnavailableError
from minka.types import Inbox, Job
from tests.fakes import WAIT, FakeBackend, tokens_of
from tests.server.site import fake_runtime

GREEDY = SamplingParams(temperature=0, max_tokens=8)
HI = {"role": "user", "content": "hi"}


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.text for output in outputs]


# -- generate ----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_completed(llm: LLM) -> None:
    (output,) = llm.generate("once", GREEDY)
    (completion,) = output.outputs
    assert output.finished
    assert output.prompt == "once"
    assert list(output.prompt_token_ids) == llm.tokenize("once")
    assert (len(completion.text), len(completion.token_ids)) == (8, 8)
    assert completion.delta == completion.text == llm.detokenize(completion.token_ids)
    assert (completion.finish_reason, completion.stop_reason) == ("length", None)
    assert completion.logprobs is None
    assert completion.message is None
    assert completion.timings is not None
    assert completion.timings.predicted_n == 8


def test_ids_are_a_prompt_and_lists_are_many(llm: LLM) -> None:
    ids = llm.tokenize("once")
    (alone,) = llm.generate(ids, GREEDY)
    assert alone.prompt is None
    assert alone.prompt_token_ids == tuple(ids)
    mixed: list[str | list[int]] = ["once", ids]
    assert texts(llm.generate(mixed, GREEDY)) == [alone.text, alone.text]
    assert texts(llm.generate([ids, ids], GREEDY)) == [alone.text, alone.text]
    assert llm.generate([], GREEDY) == []


def test_many_prompts_keep_their_order_and_few_wait_in_the_engine(
    llm: LLM, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"prompt {n}" for n in range(40)]
    alone = [llm.generate(prompt, GREEDY)[0].text for prompt in prompts]
    submit, in_engine = Engine.submit, list[int]()

    def counted(self: Engine, job: Job, inbox: Inbox) -> None:
        submit(self, job, inbox)
        in_engine.append(len(self._open))

    monkeypatch.setattr(Engine, "submit", counted)
    assert texts(llm.generate(prompts, GREEDY)) == alone
    assert len(in_engine) == 40
    assert max(in_engine) <= 2 * backend.n_seq_max
    assert max(len(batch) for batch in backend.decodes) > 1, "they are computed together"


def test_params_may_be_one_for_each_prompt(llm: LLM) -> None:
    outputs = llm.generate(["a", "b"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5)])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    with pytest.raises(RequestError, match="2 prompts, but params for 1"):
        llm.generate(["a", "b"], [GREEDY])


def test_several_completions_stop_strings_and_log_probabilities(llm: LLM) -> None:
    whole = llm.generate("once", GREEDY)[0].text
    (output,) = llm.generate("once", SamplingParams(temperature=0, max_tokens=8, n=3, logprobs=2, stop=whole[4:6]))
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    for completion in output.outputs:
        assert completion.text == whole[: whole.index(whole[4:6])]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", whole[4:6])
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.text)
        assert all(len(entry.top) == 2 for entry in completion.logprobs)
    (none,) = llm.generate("once", SamplingParams(max_tokens=1, logprobs=0))[0].outputs
    assert none.logprobs is not None
    assert none.logprobs[0].top == ()


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(n=0), "n"),
        (SamplingParams(seed=-2), "seed"),
        (SamplingParams(logit_bias={9999: 1.0}), "logit_bias"),
        (SamplingParams(extra={"top_k": "many"}), "top_k"),
    ],
)
def test_parameters_are_checked_as_those_of_a_request(llm: LLM, params: SamplingParams, field: str) -> None:
    with pytest.raises(RequestError, match=field):
        llm.generate("a", params)


def test_a_bias_and_other_fields_reach_the_model(llm: LLM) -> None:
    (token,) = tokens_of("z")
    assert llm.generate("a", SamplingParams(temperature=0, max_tokens=3, logit_bias={token: 100.0}))[0].text == "zzz"
    assert len(llm.generate("a", SamplingParams(extra={"n_predict": 2}))[0].outputs[0].token_ids) == 2


def test_a_prompt_that_is_too_long_is_found_before_anything_is_computed(llm: LLM, backend: FakeBackend) -> None:
    with pytest.raises(ContextSizeError) as caught:
        llm.generate(["a", "b", "x" * 600], GREEDY)
    assert caught.value.__notes__ == ["this is about prompt 2 (counted from 0)"]
    assert backend.decodes == []


def test_a_failure_ends_the_call_and_leaves_nothing_behind(
    fake_backend: Callable[..., FakeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tokens_of("bad")
    backend = fake_backend(fail=lambda chunks: any(chunk.tokens[-3:] == bad for chunk in chunks))
    monkeypatch.setattr("minka.api.model.load", lambda _settings: fake_runtime(backend))
    with LLM() as llm:
        with pytest.raises(NativeError) as caught:
            llm.generate(["a", "bad", "c"], SamplingParams(max_tokens=400))
        assert "prompt" in caught.value.__notes__[0]
        assert len(llm.generate("a", GREEDY)[0].text) == 8
        view = llm._runtime.engine.view().result(WAIT)
        assert not any(slot.busy for slot in view.slots)


def test_threads_may_share_a_model(llm: LLM) -> None:
    alone = {n: texts(llm.generate([f"{n} a", f"{n} b"], GREEDY)) for n in range(6)}
    together: dict[int, list[str]] = {}

    def work(n: int) -> None:
        together[n] = texts(llm.generate([f"{n} a", f"{n} b"], GREEDY))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(WAIT)
    assert together == alone


def test_a_closed_model_says_so(llm: LLM) -> None:
    llm.close()
    llm.close()
    with pytest.raises(UnavailableError):
        llm.generate("a")


def test_closing_ends_what_runs(llm: LLM, backend: FakeBackend) -> None:
    backend.gate.let(2)
    caught: list[MinkaError] = []

    def work() -> None:
        try:
            llm.generate(["a"] * 20, GREEDY)
        except MinkaError as error:
            caught.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    backend.gate.wait_held()
    closer = threading.Thread(target=llm.close)
    closer.start()
    backend.gate.open()
    for thread in (worker, closer):
        thread.join(WAIT)
    assert [type(error) for error in caught] == [UnavailableError]


def test_progress_is_shown_when_asked_for(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    assert capfd.readouterr().err == ""
    llm.generate(["a", "b"], GREEDY, progress=True)
    assert "2/2" in capfd.readouterr().err


# -- chat --------------------------------------------------------------------------------------------------------------


def test_a_conversation_is_answered(llm: LLM) -> None:
    (output,) = llm.chat([HI], GREEDY)
    (completion,) = output.outputs
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert completion.message == {"role": "assistant", "content": completion.text}
    assert texts(llm.chat([[HI], [HI]], GREEDY)) == [output.text, output.text]


def test_fields_of_a_chat_request(llm: LLM) -> None:
    begun = [HI, {"role": "assistant", "content": "We"}]
    (output,) = llm.chat(begun, GREEDY, continue_final_message=True, add_generation_prompt=False)
    assert output.prompt is not None
    assert output.prompt.endswith("assistant\nWe")
    logprobs = llm.chat([HI], SamplingParams(max_tokens=2, logprobs=1))[0].outputs[0].logprobs
    assert logprobs is not None
    assert [len(entry.top) for entry in logprobs] == [1, 1]
    with pytest.raises(RequestError, match="role"):
        llm.chat([{"role": "nobody", "content": "x"}])


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_and_text(llm: LLM) -> None:
    assert llm.detokenize(llm.tokenize("héllo", add_special=False)) == "héllo"
    assert len(llm.tokenize("ab")) == len(llm.tokenize("ab", add_special=False)) + 1
    assert llm.n_ctx == 512
    with pytest.raises(RequestError, match="outside the vocabulary"):
        llm.detokenize([10**6])


# -- the package -------------------------------------------------------------------------------------------------------

LAZY = """
import json, sys
import minka
before = [name for name in ("llama_cpp", "numpy", "minka.api", "jinja2", "starlette") if name in sys.modules]
minka.LLM
missing = set(minka.__all__) - set(dir(minka.api)) - {"__version__"}
print(json.dumps([before, sorted(missing), "starlette" in sys.modules]))
"""


def test_importing_the_package_loads_nothing_and_its_names_load_no_web_framework() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], [], False]


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        _ = minka.Llm
