"""Finds out what a chat template can do, by rendering conversations with marked words and looking which come out.

Templates carry no description of themselves. The questions, and the names of the answers, are llama.cpp's
(`chat_template_caps`). The module knows variables and rendered text, nothing of Jinja.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from minka.chat.profile import (
    Caps,
    Json,
    Profile,
    ReasoningField,
    ReasoningMarks,
    common_prefix,
    preserve_reasoning,
    reasoning_effort,
    text_part,
    with_reasoning,
)

Render = Callable[[Mapping[str, object]], str | None]
"""Renders template variables; None if the template refuses them."""

# Words that no template says by itself.
USER, SYSTEM, ANSWER, SECOND, RESULT, REASONING = (
    "prb-user",
    "prb-system",
    "prb-answer",
    "prb-second",
    "prb-result",
    "prb-reasoning",
)
FUNCTION, KEY, VALUE, VALUE_2 = "prb_function", "prb_key", "prb-value", "prb-value-two"
MAX_TAG = 100
THOUGHT = re.compile("think|thought|reason", re.IGNORECASE)
TAG = re.compile(r"<[^<>]*>")
TAG_AT_START = re.compile(r"\s*(?:<[^<>]*>|\[/?[A-Z_]+\])\s*")
TAG_AT_END = re.compile(r"(?:<[^<>\s]*>\w+)?(?:<[^<>]*>|\[[A-Z_]+\])[^<>\[\]]*$")
SHORT_ID, SHORT_ID_2, LONG_ID = "call00001", "call00002", "call_0123456789abcdef"


def probe(render: Render) -> Profile:
    """The profile of the template behind `render`; about twenty renderings."""
    return _Probe(render).profile()


class _Probe:
    def __init__(self, render: Render) -> None:
        self._render = render
        self._typed_only = False
        self._object_arguments = False

    def profile(self) -> Profile:
        string = self._string_content()
        typed = self._typed_content(string)
        self._typed_only = typed and not string
        tools = self._tools()
        calls_text = self._tool_calls()
        calls = calls_text is not None
        reasoning_field = self._reasoning_field(calls)
        reasoning_marks = self._reasoning_marks(reasoning_field)
        caps = Caps(
            supports_string_content=string or not typed,
            supports_typed_content=typed,
            supports_tools=tools,
            supports_tool_calls=calls,
            supports_parallel_tool_calls=calls and self._parallel_calls(),
            supports_system_role=_has(self._chat([self._text("system", SYSTEM), self._text("user", USER)]), SYSTEM),
            supports_preserve_reasoning=self._preserve_reasoning(reasoning_field),
            supports_reasoning_effort=self._reasoning_effort(),
            supports_object_arguments=calls and self._object_arguments,
        )
        return Profile(
            caps=caps,
            thinking=reasoning_marks is not None or self._speaks_of_thinking(),
            calls_need_tools=calls and not _has(self._chat(self._call_turns(SHORT_ID)), VALUE),
            tool_role=_has(calls_text, RESULT) if calls else self._tool_role(),
            short_ids=calls and self._chat(self._call_turns(LONG_ID), tools=True) is None,
            reasoning_field=reasoning_field,
            reasoning_marks=reasoning_marks,
            call_example=self._call_example() if calls else "",
        )

    def _string_content(self) -> bool:
        return _has(self._chat([{"role": "user", "content": USER}]), USER)

    def _typed_content(self, string: bool) -> bool:
        """Whether all parts come out, as text and not as the spelling of a list.

        Of a template that takes strings too, it is asked for every role: some show only a system message's first part,
        and those get strings.
        """
        user: Json = {"role": "user", "content": [text_part(USER), text_part(SECOND)]}
        text = self._chat([user])
        if string and _has(text, SECOND):
            system: Json = {"role": "system", "content": [text_part(SYSTEM), text_part(RESULT)]}
            answer: Json = {"role": "assistant", "content": [text_part(ANSWER), text_part(VALUE)]}
            text = self._chat([system, user, answer, user]) or self._chat([user, answer, user])
            if _has(text, SYSTEM) != _has(text, RESULT) or _quoted(text, SYSTEM):
                return False
            if not (_has(text, ANSWER) and _has(text, VALUE)) or _quoted(text, ANSWER):
                return False
        return _has(text, USER) and _has(text, SECOND) and not _quoted(text, USER)

    def _tools(self) -> bool:
        turns = [self._text("user", USER)]
        with_system = [self._text("system", SYSTEM), *turns]
        return any(_has(self._chat(messages, tools=True), FUNCTION) for messages in (turns, with_system))

    def _tool_calls(self) -> str | None:
        """The rendering of a conversation with a call, with object arguments if the template takes them."""
        for as_object in (True, False):
            self._object_arguments = as_object
            text = self._chat(self._call_turns(SHORT_ID), tools=True)
            # A Python dict printed as it is: the template wanted text.
            if text is not None and _has(text, VALUE) and f"'{KEY}': '{VALUE}'" not in text:
                return text
        return None

    def _parallel_calls(self) -> bool:
        calls = [self._call(SHORT_ID, VALUE), self._call(SHORT_ID_2, VALUE_2)]
        results = [self._result(SHORT_ID), self._result(SHORT_ID_2)]
        text = self._chat([self._text("user", USER), self._calling(calls), *results], tools=True)
        return _has(text, VALUE) and _has(text, VALUE_2)

    def _tool_role(self) -> bool:
        turns = [self._text("user", USER), self._text("assistant", ANSWER), self._result(SHORT_ID)]
        return _has(self._chat(turns), RESULT)

    def _preserve_reasoning(self, field: ReasoningField) -> bool:
        """Whether reasoning comes out that is older than the last user message."""
        thought = with_reasoning(self._text("assistant", ANSWER), REASONING, field)
        turns = [self._text("user", USER), thought, self._text("user", SECOND)]
        return _has(self._chat(turns, extra=preserve_reasoning(preserve=True)), REASONING)

    def _reasoning_effort(self) -> bool:
        turns = [self._text("user", USER)]
        texts = {self._chat(turns, extra=reasoning_effort(effort)) for effort in ("none", "low", "high", "max")}
        return len(texts - {None}) > 1

    def _speaks_of_thinking(self) -> bool:
        """Whether `enable_thinking` adds or removes something that has to do with thinking."""
        turns = [self._text("user", USER)]
        on, off = (self._chat(turns, extra={"enable_thinking": enable}) for enable in (True, False))
        if on is None or off is None:
            return False
        start = len(common_prefix(on, off))
        end = len(common_prefix(on[start:][::-1], off[start:][::-1]))
        return bool(THOUGHT.search(on[start : len(on) - end]) or THOUGHT.search(off[start : len(off) - end]))

    def _reasoning_field(self, calls: bool) -> ReasoningField:
        """Tried on the turn that is going on, where every template that knows reasoning shows it."""
        for field in ReasoningField:
            thought = with_reasoning(self._text("assistant", ANSWER), REASONING, field)
            calling = with_reasoning(self._calling([self._call(SHORT_ID, VALUE)]), REASONING, field)
            turns = [self._text("user", USER), calling, self._result(SHORT_ID)] if calls else []
            answered = [self._text("user", USER), thought]
            for messages in (turns, answered):
                text = self._chat(messages, tools=messages is turns) if messages else None
                if _has(text, REASONING) and not _quoted(text, REASONING):
                    return field
        return ReasoningField.REASONING_CONTENT

    def _reasoning_marks(self, field: ReasoningField) -> ReasoningMarks | None:
        """What stands between the header of an answer, its reasoning and its content: in the last answer, or in one
        that calls a tool, as some templates show no other reasoning."""
        user = self._text("user", USER)
        thought = with_reasoning(self._text("assistant", ANSWER), REASONING, field)
        calling = {**thought, "tool_calls": [self._call(SHORT_ID, VALUE)]}
        opening = self._chat([user])
        if opening is None:
            return None
        for turns in ([thought], [calling, self._result(SHORT_ID)]):
            text = self._chat([user, *turns], extra={"add_generation_prompt": False})
            if text is None or not -1 < text.find(REASONING) < text.find(ANSWER):
                continue
            before, after = text.split(REASONING, 1)
            start = before[len(common_prefix(before, opening)) :]
            if not start.strip():
                start = _open_tag(before)
            end = _close_tag(after.split(ANSWER, 1)[0])
            return ReasoningMarks(start, end) if start.strip() else None
        return _opened_marks(opening)

    def _call_example(self) -> str:
        """A call as the template writes it, without what stands around it."""
        turns = [self._text("user", USER)]
        example = {"id": SHORT_ID, "type": "function"}
        arguments: object = {"ARGUMENT": "VALUE"} if self._object_arguments else '{"ARGUMENT": "VALUE"}'
        function: Json = {"name": "FUNCTION_NAME", "arguments": arguments}
        calling = self._calling([{**example, "function": function}])
        called = self._chat([*turns, calling], extra={"add_generation_prompt": False})
        plain = self._chat([*turns, self._text("assistant", "")], extra={"add_generation_prompt": False})
        if called is None or plain is None:
            return ""
        return _added(called, plain)

    def _chat(
        self, messages: list[Json], *, tools: bool = False, extra: Mapping[str, object] | None = None
    ) -> str | None:
        variables: Json = {"messages": messages, "add_generation_prompt": True, **(extra or {})}
        if tools:
            variables["tools"] = [_tool()]
        return self._render(variables)

    def _text(self, role: str, text: str) -> Json:
        return {"role": role, "content": [text_part(text)] if self._typed_only else text}

    def _call_turns(self, call_id: str) -> list[Json]:
        calling = self._calling([self._call(call_id, VALUE)])
        after = [self._text("assistant", ANSWER), self._text("user", SECOND)]
        return [self._text("user", USER), calling, self._result(call_id), *after]

    def _calling(self, calls: list[Json]) -> Json:
        return {**self._text("assistant", ""), "content": "", "tool_calls": calls}

    def _call(self, call_id: str, value: str) -> Json:
        arguments: object = {KEY: value} if self._object_arguments else f'{{"{KEY}": "{value}"}}'
        return {"id": call_id, "type": "function", "function": {"name": FUNCTION, "arguments": arguments}}

    def _result(self, call_id: str) -> Json:
        return {**self._text("tool", RESULT), "tool_call_id": call_id, "name": FUNCTION}


def _tool() -> Json:
    parameters = {
        "type": "object",
        "properties": {KEY: {"type": "string", "description": "Argument description"}},
        "required": [KEY],
    }
    function = {"name": FUNCTION, "description": "Function description", "parameters": parameters}
    return {"type": "function", "function": function}


def _added(called: str, plain: str) -> str:
    """What the first text has in its middle and the other has not, in whole tags and without the end of the turn."""
    start = len(common_prefix(called, plain))
    end = len(called) - len(common_prefix(called[start:][::-1], plain[start:][::-1]))
    # Tags that differ share their brackets.
    if called.rfind("<", 0, start) > called.rfind(">", 0, start):
        start = called.rfind("<", 0, start)
    if called.rfind("<", 0, end) > called.rfind(">", 0, end):
        end = called.find(">", end) + 1
    added = called[start:end]
    for end_of_turn in TAG.findall(plain)[-1:]:
        added = added.split(end_of_turn)[0]
    return added.strip()


def _open_tag(text: str) -> str:
    """The tag that opens reasoning at the end of a text, with the white space after it; empty if there is none."""
    match = TAG_AT_END.search(text[-MAX_TAG:])
    return match.group() if match and THOUGHT.search(match.group()) else ""


def _close_tag(text: str) -> str:
    """The text itself, or only the tag at its start if a tool call follows."""
    match = TAG_AT_START.match(text) if FUNCTION in text else None
    return match.group() if match else text


def _opened_marks(opening: str) -> ReasoningMarks | None:
    """For templates that drop past reasoning, but whose generation prompt opens a new one, as DeepSeek-R1's does."""
    start = _open_tag(opening)
    close = start.strip().replace("<", "</", 1).replace("[", "[/", 1)
    return ReasoningMarks(start, f"\n{close}\n\n") if start else None


def _has(text: str | None, word: str) -> bool:
    return text is not None and word in text


def _quoted(text: str | None, word: str) -> bool:
    return _has(text, f"'{word}'") or _has(text, f'"{word}"')
