"""The part of an answer in which a model thinks: reading it, and the rule body in front of the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minka.chat.formats import lark
from minka.chat.formats.format import Ask, ReasoningTags
from minka.chat.formats.reader import Reader, Steps
from minka.grammar.marks import mark, regex_of

THINK = ReasoningTags("<think>", ("</think>",))


def think_tags(source: str) -> ReasoningTags | None:
    """The tags of most models, if the template has them."""
    return THINK if "</think>" in source else None


def is_open(ask: Ask, tags: ReasoningTags) -> bool:
    """Whether the prompt ends inside of the reasoning."""
    _, start, inside = ask.prefill.rpartition(tags.start.strip())
    return bool(start) and not any(end.strip() in inside for end in tags.ends)


def read_reasoning(reader: Reader, ask: Ask, tags: ReasoningTags | None, also_ends: Sequence[str] = ()) -> Steps[str]:
    """Take the reasoning, if the answer begins with it. `also_ends` end it too, and are returned if they did."""
    if tags is None or not (yield from reader.comes_after_space(tags.start.strip())):
        return ""
    tell = reader.content if ask.keep_reasoning else reader.reasoning
    yield from reader.before((tags.start.strip(),), tell)
    _take_tag(reader, ask, tags.start.strip())
    ends = tuple(end.strip() for end in tags.ends)
    reader.thinks = True
    found = yield from reader.before((*ends, *also_ends), tell)
    reader.thinks = False
    if found in ends:
        _take_tag(reader, ask, found)
        return ""
    reader.take(len(found))
    reader.drop_space()
    return found


def _take_tag(reader: Reader, ask: Ask, tag: str) -> None:
    if ask.keep_reasoning:
        reader.content_of(len(tag))
    else:
        reader.take(len(tag))
        reader.begin(bare=True)


Answer = Callable[[str], str]
"""Makes the rule body of an answer that does not begin with a given tag, empty for none."""


def whole_text(
    rules: lark.Rules, ask: Ask, tags: ReasoningTags | None, answer: Answer, calls: str = "", opening: str = ""
) -> str:
    """The rule body of the whole text: the reasoning if there is any, then the answer.

    `opening` ends the reasoning too, and then comes what `calls` matches.
    """
    if tags is None:
        return answer("")
    behind = [lark.sequence(rules.until(*tags.ends), lark.FEW_NEWLINES, rules.rule(answer("")))]
    if calls and opening:
        behind.append(lark.sequence(rules.until(opening), calls))
    if is_open(ask, tags):
        return lark.either(behind)
    if not ask.thinks:
        return answer("")
    start = tags.start.strip()
    # As text the tag must be one lexeme with the space before it: else a longer one, of free text, would win over both.
    spelled = rules.terminal(f"/[ \\n]{{0,4}}{regex_of(start)}/")
    opened = lark.either([spelled, lark.sequence(lark.FEW_NEWLINES, mark(start))])
    return lark.either([answer(start), *(lark.sequence(opened, body) for body in behind)])
