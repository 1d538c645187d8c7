"""Damaged answers, for every family: never an exception, never a difference by how the text came, never a word lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minka.chat.formats.format import Ask, Calls, Delta
from tests.chat.formats.every import EVERY
from tests.chat.formats.samples import TOOLS, fold

WORD = re.compile("Paris|Hello|Hm")
ODD = (
    "\u200d",
    "🎈",
    "é",
    "\u2028",
    "\x00",
    "\ufeff",
    '"',
    "\\",
    "\n",
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    "|",
    "</",
    "<|",
    ":",
    ",",
)
SLOW = [HealthCheck.too_slow, HealthCheck.differing_executors]


def texts(name: str) -> list[str]:
    return [sample.raw for sample in EVERY[name].samples.values()]


@st.composite
def damaged(draw: st.DrawFn, name: str) -> str:
    """Pieces of samples in any order, cut anywhere, with odd characters and words between them."""
    pieces: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        raw = draw(st.sampled_from(texts(name)))
        start, end = sorted((draw(st.integers(0, len(raw))), draw(st.integers(0, len(raw)))))
        whole = draw(st.booleans())
        pieces.append(raw if whole else raw[start:end])
        pieces.append(draw(st.sampled_from(("", "", " ", *ODD))))
    return "".join(pieces)


def parsed(name: str, ask: Ask, pieces: list[str]) -> list[Delta]:
    parser = EVERY[name].format.parser(ask)
    return [delta for piece in pieces for delta in parser.feed(piece)] + parser.end()


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(data=st.data())
def test_damage_changes_nothing_by_how_it_comes(name: str, data: st.DataObject) -> None:
    text = data.draw(damaged(name))
    ask = Ask(TOOLS, Calls.AUTO, thinks=data.draw(st.booleans()), keep_reasoning=data.draw(st.booleans()))
    whole = fold(parsed(name, ask, [text]))
    assert fold(parsed(name, ask, cut(text, data.draw(st.lists(st.integers(0, 10**4), max_size=12))))) == whole
    assert fold(parsed(name, ask, list(text))) == whole


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(data=st.data())
def test_no_word_is_lost(name: str, data: st.DataObject) -> None:
    """Words of content, of reasoning and of arguments; ids, names and tags are no text of the model's."""
    words: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        words.append(f"w{len(words)}w")
        return words[-1]

    text = WORD.sub(numbered, data.draw(damaged(name)))
    whole = fold(parsed(name, Ask(TOOLS, Calls.AUTO, thinks=True), [text]))
    told = " ".join([whole.content, whole.reasoning, *map(" ".join, whole.calls), *(whole.cut or ())])
    lost = [word for word in words if word not in told]
    if whole.cut:  # a word in the place of a key, where the text ended
        lost = [word for word in lost if text.index(word) < text.index(whole.cut[0])]
    assert lost == []


CUT = {name: raw for name in EVERY for raw in reversed(texts(name)) if re.search("deep.*true", raw, re.DOTALL)}
"""The first sample of each family that has arguments with true in them."""


@pytest.mark.parametrize("name", CUT)
def test_a_value_that_is_cut_off_is_told_as_far_as_it_came(name: str) -> None:
    raw = CUT[name]
    whole = fold(parsed(name, Ask(TOOLS, Calls.AUTO), [raw[: raw.index("true", raw.index("deep")) + 2]]))
    assert (whole.cut or ("", "", whole.content))[2].endswith("tr")


NEEDED = {
    "</tool_call>": "in GLM, Ling and Laguna it is all that says that no argument follows",
    "</tool_call:x>": "in Hunyuan 3 it is all that says that no argument follows",
    "</atem:invoke>": "in Muse it is all that says that no argument follows",
    "<|sep|>": "in Kimi K3 it is the end of every tag",
}
"""Tags without which a call is not complete, and why."""
DO_WITHOUT = {"hermes", "qwen-coder"}
"""Families whose calls end before one of these tags."""


def ends_with_a_mark(name: str) -> bool:
    """Whether a sample ends, behind its calls, with what may be a token."""
    case = EVERY[name]
    called = [s.raw.rstrip() for s in case.samples.values() if fold(parsed(name, s.ask, [s.raw])).calls]
    return any(text.endswith(mark) for text in called for mark in case.format.marks)


@pytest.mark.parametrize("name", [*filter(ends_with_a_mark, EVERY)])
def test_the_last_tag_of_the_calls_may_be_an_end_token(name: str) -> None:
    """An engine takes tokens off the text that end the generation."""
    format = EVERY[name].format
    for sample in EVERY[name].samples.values():
        text, calls = sample.raw.rstrip(), fold(parsed(name, sample.ask, [sample.raw])).calls
        while end := next((mark for mark in format.marks if calls and text.endswith(mark)), ""):
            text = text.removesuffix(end).rstrip()
            whole = fold(parsed(name, sample.ask, [text]))
            if end in NEEDED and format.name not in DO_WITHOUT:
                assert whole.cut or whole.content, "it is needed no more"
                break
            assert whole.calls == calls, text
            assert whole.cut is None
