from __future__ import annotations

from dataclasses import replace

import pytest

from minka.chat.formats.families import find_family
from minka.chat.formats.format import Ask, CallBroken, CallEnd, Calls, CallStart, Content, Reasoning, Tool
from minka.chat.messages import ToolCall
from minka.chat.turn import Turn
from minka.params import ChatParams
from minka.protocols.answer import Answer, Answers
from minka.types import FinishReason, Job
from tests.protocols.values import Play

FORMAT = find_family('<tool_call>\n{"name": </think>')
TOOLS = (Tool("get_time", "", {}),)
CALL = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
JOB = Job("answer:0", (1, 2, 3))


def turn(settings: ChatParams | None = None) -> Turn:
    assert FORMAT is not None
    return Turn("", FORMAT, Ask(TOOLS, Calls.AUTO, thinks=True), settings or ChatParams())


def played(*texts: str, reason: FinishReason = FinishReason.EOS, settings: ChatParams | None = None) -> Answer:
    answer = Answer(turn(settings), JOB, 0)
    for event in Play(texts, reason=reason).events(JOB):
        answer.add(event)
    return answer


def test_an_answer_folds_into_its_parts() -> None:
    answer = played("<think>", "\nH", "m.\n", "</think>", "\n\n", "I ", "look.\n", CALL)
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("Hm.", "I look.", "tool_calls")
    (call,) = answer.calls
    assert call == ToolCall(call.id, "get_time", "{}")
    assert answer.n_reasoning_tokens == 3
    assert answer.transcript.text.startswith("<think>")


def test_ids_are_long_and_differ() -> None:
    answer = played(CALL, "\n", CALL)
    first, second = answer.calls
    assert first.id.startswith("call_")
    assert len(first.id) == len("call_") + 24
    assert first.id != second.id


def test_the_stream_has_the_ids_of_the_whole() -> None:
    answer = Answer(turn(), JOB, 0, id_prefix="toolu_")
    deltas = [delta for event in Play([CALL]).events(JOB) for delta in answer.add(event)]
    assert [delta.id for delta in deltas if isinstance(delta, CallStart)] == [answer.calls[0].id]
    assert answer.calls[0].id.startswith("toolu_")


@pytest.mark.parametrize(("reason", "word"), [(FinishReason.LIMIT, "length"), (FinishReason.WORD, "stop")])
def test_a_call_that_is_cut_off_has_the_arguments_so_far(reason: FinishReason, word: str) -> None:
    cut = CALL.replace("{}", '{"zone": "CET"}')[: -len('"}}\n</tool_call>')]
    answer = Answer(turn(), JOB, 0)
    deltas = [delta for event in Play([CALL, "\n", cut], reason=reason).events(JOB) for delta in answer.add(event)]
    assert [(call.name, call.arguments) for call in answer.calls] == [("get_time", "{}"), ("get_time", '{"zone": "CET')]
    assert (answer.content, answer.finish_reason) == ("", word)
    assert [delta.index for delta in deltas if isinstance(delta, CallEnd)] == [0]


def test_a_call_that_is_none_is_content_in_a_stream_and_in_the_whole() -> None:
    answer = Answer(turn(), JOB, 0)
    wrong = CALL.replace("{}", "{1}")
    deltas = [delta for event in Play(["So: ", wrong, " ok"]).events(JOB) for delta in answer.add(event)]
    assert CallBroken(0) in deltas
    assert "".join(delta.text for delta in deltas if isinstance(delta, Content)) == f"So: {wrong} ok"
    assert (answer.content, answer.calls, answer.finish_reason) == (f"So: {wrong} ok", (), "stop")


def test_the_limit_is_told_although_there_are_calls() -> None:
    assert played(CALL, reason=FinishReason.LIMIT).finish_reason == "length"


def test_old_clients_find_the_reasoning_in_the_content_too() -> None:
    answer = played("<think>Hm.</think>", "Hi", settings=ChatParams(reasoning_format="deepseek-legacy"))
    assert (answer.reasoning, answer.content) == ("Hm.", "<think>Hm.</think>Hi")


def test_answers_are_found_by_their_jobs() -> None:
    jobs = (JOB, replace(JOB, id="answer:1"))
    answers = Answers(turn(), jobs)
    told = [answers.add(event) for job in reversed(jobs) for event in Play(["<think>a</think>", "b"]).events(job)]
    assert [answer.index for answer, deltas in told if deltas] == [1, 1, 0, 0]
    assert [type(delta) for _, deltas in told for delta in deltas] == [Reasoning, Content] * 2
