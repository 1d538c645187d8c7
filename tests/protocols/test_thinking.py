"""The reasoning of plain prompts: tags, a budget, and whether the prompt ends inside of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from minka.errors import NotSupportedError, RequestError
from minka.grammar.compiler import Grammars
from minka.params import ChatParams
from minka.protocols import infill, native, openai_chat, openai_completions
from minka.protocols.exchange import Exchange
from minka.protocols.served import Served
from minka.types import Job, Thinking
from tests.fakes import EOS, FakeBackend, FakeVocab
from tests.protocols.values import made_served
from tests.server.site import Site, fake_runtime

SERVED = replace(made_served(FakeVocab(add_bos=True)), grammars=Grammars(FakeVocab()))
TAGS = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tags": ["</think>", "[call]"]}
ENDS = ("</think>", "[call]")

Decode = Callable[[Mapping[str, object], Served], Exchange]
PLAIN = [
    pytest.param(native.decode, {"prompt": "a"}, id="completion"),
    pytest.param(openai_completions.decode, {"prompt": "a"}, id="v1-completions"),
    pytest.param(infill.decode, {"input_prefix": "a", "input_suffix": "b"}, id="infill"),
]


def thinking(job: Job) -> Thinking | None:
    return job.constraint.thinking if job.constraint is not None else None


def completed(fields: Mapping[str, object], served: Served = SERVED) -> list[Thinking | None]:
    return [thinking(job) for job in native.decode({"prompt": "a", **fields}, served).jobs]


@pytest.mark.parametrize(("decode", "body"), PLAIN)
@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_budget_tokens"])
def test_every_route_of_plain_prompts_takes_a_budget(decode: Decode, body: dict[str, object], name: str) -> None:
    (job,) = decode({**body, **TAGS, name: 7, "reasoning_budget_message": "!"}, SERVED).jobs
    assert thinking(job) == Thinking("<think>", ENDS, budget=7, message="!")


@pytest.mark.parametrize(("decode", "body"), PLAIN)
@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_budget_tokens"])
def test_a_budget_without_tags_is_refused(decode: Decode, body: dict[str, object], name: str) -> None:
    with pytest.raises(RequestError, match="a plain prompt does not say") as caught:
        decode({**body, name: 5}, SERVED)
    assert caught.value.param == name
    assert decode({**body, name: -1}, SERVED).jobs[0].constraint is None


def test_one_end_tag_and_several() -> None:
    one = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tag": "</t>", "reasoning_budget_tokens": 0}
    assert completed(one) == [Thinking("<t>", ("</t>",), budget=0)]
    both = one | {"reasoning_budget_end_tags": ["", "</a>", "</b>"]}
    assert completed(both) == [Thinking("<t>", ("</a>", "</b>"), budget=0)]


def test_tags_alone_watch_nothing() -> None:
    assert completed(TAGS) == [None]
    assert completed({**TAGS, "reasoning_control": True}) == [Thinking("<think>", ENDS)]


def test_empty_tags_are_none() -> None:
    nothing = {"reasoning_budget_start_tag": "", "reasoning_budget_end_tag": "", "reasoning_budget_end_tags": []}
    assert completed(nothing) == completed(dict.fromkeys(nothing)) == [None]


def test_a_grammar_that_begins_late_is_told_of_the_reasoning() -> None:
    late = {
        "grammar": 'root ::= "7"',
        "grammar_lazy": True,
        "grammar_triggers": [{"type": 1, "value": "now"}],
    }
    assert completed({**TAGS, **late}) == [Thinking("<think>", ENDS)]


def test_the_servers_budget_and_message_hold_where_the_request_has_tags() -> None:
    served = replace(SERVED, chat=ChatParams(reasoning_budget=9, reasoning_budget_message="Enough."))
    assert completed(TAGS, served) == [Thinking("<think>", ENDS, budget=9, message="Enough.")]
    assert completed({**TAGS, "reasoning_budget_tokens": -1}, served) == [None]
    assert completed({}, served) == [None]


def test_reasoning_is_open_where_the_prompt_ends_with_its_start() -> None:
    prompts = ["Hm? <think>", "Hm? <think>\n", "<think>so</think>", "What is <think> for?"]
    found = completed({**TAGS, "prompt": prompts, "reasoning_budget_tokens": 4})
    assert [one.is_open for one in found if one is not None] == [True, True, False, False]


@pytest.mark.parametrize(
    ("begun", "is_open"), [("<think>\nso far", True), ("<think>so</think>", False), ("assistant\n", False)]
)
def test_the_generation_prompt_says_so_too(begun: str, is_open: bool) -> None:
    fields = {"prompt": f"Hm? {begun}", "generation_prompt": begun, "reasoning_budget_tokens": 4}
    (found,) = completed({**TAGS, **fields})
    assert found is not None
    assert found.is_open is is_open


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_budget_start_tag": "<t>"}, "reasoning_budget_end_tag"),
        ({"reasoning_budget_end_tag": "</t>"}, "reasoning_budget_start_tag"),
        ({"reasoning_budget_start_tag": 1}, "reasoning_budget_start_tag"),
        ({"reasoning_budget_end_tag": ["</t>"]}, "reasoning_budget_end_tag"),
        ({"reasoning_budget_end_tags": "</t>"}, "reasoning_budget_end_tags"),
        ({"reasoning_budget_end_tags": [1]}, "reasoning_budget_end_tags"),
        ({"reasoning_budget_end_tags": ["x"] * 17}, "reasoning_budget_end_tags"),
        ({"reasoning_budget_start_tag": "x" * 201}, "reasoning_budget_start_tag"),
        ({**TAGS, "reasoning_budget_tokens": -2}, "reasoning_budget_tokens"),
        ({**TAGS, "reasoning_budget_message": 3}, "reasoning_budget_message"),
        ({"generation_prompt": 3}, "generation_prompt"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        native.decode({"prompt": "a", **fields}, SERVED)
    assert caught.value.param == param


def test_a_server_that_watches_nothing_says_so() -> None:
    with pytest.raises(NotSupportedError):
        native.decode({"prompt": "a", **TAGS, "reasoning_budget_tokens": 4}, replace(SERVED, grammars=None))


def test_a_chat_takes_the_tags_where_its_template_has_none() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **TAGS, "reasoning_budget_tokens": 4}
    (job,) = openai_chat.decode(body, SERVED).jobs
    assert thinking(job) == Thinking("<think>", ENDS, budget=4)
    assert openai_chat.decode(body | {"reasoning_budget_tokens": -1}, SERVED).jobs[0].constraint is None
    without = {name: value for name, value in body.items() if name not in TAGS}
    assert openai_chat.decode(without, SERVED).jobs[0].constraint is None


# -- with the engine ---------------------------------------------------------------------------------------------------


def thinker(tokens: Sequence[int]) -> int:
    """It thinks in a's for ever, and answers "ok" behind the end of its reasoning."""
    text = bytes(token for token in tokens if token < 256)
    _, closed, answer = text.rpartition(b"</think>")
    if not closed:
        return ord("a")
    return b"ok"[len(answer)] if len(answer) < 2 else EOS


@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_ends_the_reasoning(stream: bool) -> None:
    with FakeBackend(thinker) as backend, Site(runtime=fake_runtime(backend, grammars=Grammars(backend.vocab))) as site:
        body = {
            "prompt": "Hm? <think>\n",
            **TAGS,
            "reasoning_budget_tokens": 5,
            "reasoning_budget_message": " So.",
            "temperature": 0,
        }
        answer = site.post("/completion", body | {"n_predict": 60, "stream": stream})
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        text = "".join(json.loads(line)["content"] for line in lines)
        assert text == "aaaaa So.</think>ok"
        assert json.loads(lines[-1])["stop_type"] == "eos"


def test_without_a_budget_it_goes_on() -> None:
    with FakeBackend(thinker) as backend, Site(runtime=fake_runtime(backend, grammars=Grammars(backend.vocab))) as site:
        answer = site.post("/completion", {"prompt": "Hm? <think>\n", "n_predict": 30, "temperature": 0})
        assert answer.json()["content"] == "a" * 30
