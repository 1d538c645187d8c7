"""How a prompt ends: with the header of a new answer, with nothing, or with an answer that the model goes on from.

To continue an assistant's message, the conversation before it is rendered with the header of a new answer, and that
message's text follows, behind what the template itself puts in between (an empty reasoning block, a channel). This is
what llama-server does with a trailing assistant message and with `continue_final_message`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from minka.chat.messages import Message
from minka.chat.profile import ReasoningMarks
from minka.chat.template import NO_KWARGS, Template, Tools
from minka.errors import RequestError

PLACE = "prb-continued-here"
"""Stands for the text that goes on, to find its place in a rendered answer."""

CONTINUE, GENERATE = "continue_final_message", "add_generation_prompt"


class Continuation(StrEnum):
    """Which text of the last message goes on; the values are those of `continue_final_message`."""

    CONTENT = "content"
    REASONING = "reasoning_content"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt. `prefill` is the text at its end that counts as written by the assistant, often empty."""

    text: str
    prefill: str = ""


@dataclass(frozen=True, slots=True)
class Prefill:
    """The end of a prompt. With a continuation the answer's header is always there, and begun.

    `explicit`: the request asks for the continuation, so it is an error if the template cannot show it.
    """

    add_generation_prompt: bool = True
    continuation: Continuation | None = None
    explicit: bool = False

    def render(
        self,
        template: Template,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        kwargs: Mapping[str, object] = NO_KWARGS,
    ) -> str:
        """The text of the prompt; see `Template.render` for what it raises."""
        return self.prompt(template, messages, tools=tools, kwargs=kwargs).text

    def prompt(
        self,
        template: Template,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        kwargs: Mapping[str, object] = NO_KWARGS,
    ) -> Prompt:
        """The prompt with what of it is the assistant's; see `Template.render` for what it raises."""
        if self.continuation is None:
            generate = self.add_generation_prompt
            return Prompt(template.render(messages, tools=tools, add_generation_prompt=generate, kwargs=kwargs))
        *history, last = messages
        header = template.render(history, tools=tools, add_generation_prompt=True, kwargs=kwargs)
        marks, is_content = template.reasoning_marks, self.continuation is Continuation.CONTENT

        def whole(end: Message) -> str:
            return template.render([*history, end], tools=tools, add_generation_prompt=False, kwargs=kwargs)

        in_content = replace(last, content=PLACE)
        past = whole(in_content if is_content else replace(last, content=None, reasoning_content=PLACE))
        if not is_content and marks is None and PLACE not in past:
            if self.explicit:
                raise RequestError("Cannot continue the reasoning: the chat template shows none.", param=CONTINUE)
            is_content, past = True, whole(in_content)
        header, begun = _begun(header, past, last, marks, is_content=is_content)
        return Prompt(header + begun, begun)


def decode_prefill(body: Mapping[str, object], messages: Sequence[Message], *, automatic: bool) -> Prefill:
    """Read `add_generation_prompt` and `continue_final_message` of a request with these messages.

    `automatic`: an assistant message at the end is continued even if the request does not ask for it. Raises
    RequestError for a wrong type, a contradiction, or a message that cannot be continued.
    """
    generate = body.get(GENERATE)
    if not isinstance(generate, bool | None):
        raise RequestError(f"'{GENERATE}' must be true or false", param=GENERATE)
    wanted = _decode_continuation(body.get(CONTINUE))
    last = messages[-1]
    if wanted is False and not (automatic and last.role == "assistant"):
        return Prefill(add_generation_prompt=generate is not False)
    if wanted is not False and generate:
        raise RequestError(f"Cannot set both {GENERATE} and {CONTINUE} to true.", param=CONTINUE)
    if last.role != "assistant":
        raise RequestError(f"'{CONTINUE}' needs an assistant message at the end of 'messages'.", param=CONTINUE)
    if last.tool_calls:
        raise RequestError("Cannot continue an assistant message that contains tool calls.", param="messages")
    if isinstance(wanted, Continuation):
        return Prefill(continuation=wanted, explicit=True)
    only_thought = last.reasoning_content and not last.text()
    return Prefill(continuation=Continuation.REASONING if only_thought else Continuation.CONTENT)


def _decode_continuation(value: object) -> bool | Continuation:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value in tuple(Continuation):
        return Continuation(value)
    raise RequestError(f'\'{CONTINUE}\' must be true, false, "content" or "reasoning_content"', param=CONTINUE)


def _begun(header: str, past: str, last: Message, marks: ReasoningMarks | None, *, is_content: bool) -> tuple[str, str]:
    """The header of the answer and its beginning. `past` is the conversation with PLACE where the text goes on."""
    # Parts of a message that goes on are paragraphs of it, as in llama-server.
    content, reasoning = last.text("\n\n"), last.reasoning_content or ""
    between, found, _ = past[len(header) :].rpartition(PLACE)
    is_shown = marks is None or not is_content or not reasoning or reasoning in between
    is_open = marks is not None and header.rstrip().endswith(marks.start.strip())
    is_closed = marks is None or not is_open or not is_content or marks.end.strip() in between
    if found and past.startswith(header) and is_shown and is_closed:
        return header, between + (content if is_content else reasoning)
    if marks is None:
        return header, content
    # The template writes a past answer otherwise than a new one: without its reasoning, as DeepSeek-R1's does.
    if not is_content or reasoning:
        header = _without_empty_block(header, marks)
    start = "" if is_open else marks.start
    if not is_content:
        return header, start + reasoning
    if reasoning:
        return header, start + reasoning + marks.end + content
    return header, marks.end + content if is_open else content


def _without_empty_block(header: str, marks: ReasoningMarks) -> str:
    """A header that closes reasoning at once, without that."""
    before, start, after = header.rpartition(marks.start.strip())
    return before if start and after.strip() == marks.end.strip() else header
