"""The deltas of a stream, joined, are the whole answer: also where calls are cut off or turn out to be none."""

from __future__ import annotations

from typing import Any

import pytest

from minka.types import FinishReason
from tests.protocols.test_chat_tools import CALL, chat, deltas
from tests.protocols.values import Play, at, frames, whole

TEXT = "".join(CALL)


def joined(play: Play) -> tuple[str, list[tuple[str, str]], str]:
    """Content, names and arguments of calls, and the finish reason, of a stream."""
    made = frames(chat(), play)
    calls: dict[int, tuple[str, str]] = {}
    content = reason = ""
    for chunk, delta in zip(made, deltas(made), strict=False):
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            name, arguments = calls.get(call["index"], ("", ""))
            function = call["function"]
            calls[call["index"]] = (name + function.get("name", ""), arguments + function["arguments"])
        reason = str(at(chunk, "choices", 0, "finish_reason") or reason)
    return content, list(calls.values()), reason


def told(play: Play) -> tuple[str, list[tuple[str, str]], str]:
    choice: Any = at(whole(chat(), play), "choices", 0)
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls", ())
    ]
    return choice["message"]["content"] or "", calls, choice["finish_reason"]


@pytest.mark.parametrize("reason", [FinishReason.LIMIT, FinishReason.WORD, FinishReason.EOS])
@pytest.mark.parametrize("n", range(0, len(TEXT) + 1, 3))
def test_cut_off_anywhere(n: int, reason: FinishReason) -> None:
    play = Play(["I look.\n", TEXT, "\n", *TEXT[:n]], reason=reason)
    assert joined(play) == told(play)


def test_a_call_that_is_none_leaves_its_beginning_in_the_stream_alone() -> None:
    play = Play(["So: ", *CALL[:3], ": nonsense}}", " ok"])
    content, calls, reason = told(play)
    assert (content, calls, reason) == (f"So: {''.join(CALL[:3])}: nonsense}}}} ok", [], "stop")
    assert joined(play) == (content, [("get_weather", '{"city": nonsense}')], reason)
