"""What one answer is to be: the text of its prompt, the format that the model writes it in, what it has to match.

All protocols make their requests into this. It knows no wire JSON, no tokens and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from minka.chat.formats.content_only import CONTENT_ONLY
from minka.chat.formats.format import Ask, Calls, Format, Parser, ReasoningTags
from minka.chat.messages import Message
from minka.chat.prefill import Prefill
from minka.chat.template import Template
from minka.chat.tools import NO_TOOLS, ToolChoice
from minka.params import ChatParams
from minka.types import Constraint, Thinking, Tokenizer

NO_PREFILL = Prefill()


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer that is about to be written. `settings` say what becomes of its reasoning."""

    prompt: str
    format: Format
    ask: Ask
    settings: ChatParams = field(default_factory=ChatParams)
    thinking: Thinking | None = None

    def parser(self) -> Parser:
        """A parser for the answer."""
        return self.format.parser(self.ask)

    @property
    def constraint(self) -> Constraint | None:
        """What the answer has to match, and who watches its reasoning; None for any text that nobody watches.

        Raises RequestError for tools whose arguments this model's format cannot be held to.
        """
        grammar = self.format.grammar(self.ask)
        return Constraint(grammar, self.thinking) if grammar or self.thinking else None

    def preserved(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The special tokens whose spelling belongs to the text: the parser wants to see them."""
        tokens = {
            token
            for mark in self.format.marks
            for token in tokenizer.tokenize(mark, add_special=False, parse_special=True)
        }
        return frozenset(token for token in tokens if not tokenizer.piece(token, special=False))


@dataclass(frozen=True, slots=True)
class ChatModel:
    """What makes the prompts of one model and what it writes. `kwargs` are the server's template variables."""

    template: Template
    format: Format = CONTENT_ONLY
    settings: ChatParams = field(default_factory=ChatParams)
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def turn(
        self,
        messages: Sequence[Message],
        *,
        prefill: Prefill = NO_PREFILL,
        kwargs: Mapping[str, object] | None = None,
        choice: ToolChoice = NO_TOOLS,
        content: str = "",
        settings: ChatParams | None = None,
    ) -> Turn:
        """The turn that answers a conversation.

        `kwargs` are the request's template variables, `settings` its reasoning options (see `decode_settings`),
        `content` the Lark rule body that the answer's text has to match. Raises RequestError if the template refuses
        the conversation.
        """
        settings = settings or self.settings
        variables = {**self._variables(settings), **self.kwargs, **(kwargs or {})}
        tools = choice.described() or None
        prompt = prefill.prompt(self.template, messages, tools=tools, kwargs=variables)
        format = CONTENT_ONLY if settings.skip_chat_parsing else self.format
        tags, text = self.format.reasoning, prompt.text
        written = prompt.prefill or _written(text, tags)
        may_think = tags is not None and variables.get("enable_thinking") is not False
        if tags is not None and not may_think and written and not prompt.prefill and _is_open(written, tags):
            # The template opens the reasoning whatever it is told.
            text, written = text + tags.ends[0].strip(), written + tags.ends[0].strip()
        ask = Ask(
            tools=choice.callable,
            calls=choice.calls if choice.callable else Calls.NONE,
            parallel=choice.parallel,
            content=content,
            thinks=tags is not None and may_think and not _is_closed(written, tags),
            prefill=written,
            keep_reasoning=settings.reasoning_format == "none",
        )
        return Turn(text, format, ask, settings, _thinking(ask, format.reasoning, settings))

    def _variables(self, settings: ChatParams) -> Mapping[str, object]:
        """The template variables that the reasoning settings stand for."""
        variables: dict[str, object] = {"preserve_reasoning": settings.reasoning_preserve}
        if settings.reasoning != "auto":
            variables["enable_thinking"] = settings.reasoning == "on"
        if settings.reasoning_effort == "none":
            variables["enable_thinking"] = False
        elif settings.reasoning_effort not in ("", "default"):
            variables["reasoning_effort"] = settings.reasoning_effort
        return variables


def _written(prompt: str, tags: ReasoningTags | None) -> str:
    """What the end of a prompt says for the model: a reasoning tag that is open, or that is closed at once."""
    if tags is None or not tags.start.strip():
        return ""
    bare = prompt.rstrip()
    for end in ("", *(end.strip() for end in tags.ends)):
        before = bare.removesuffix(end).rstrip()
        if end and not bare.endswith(end):
            continue
        if before.endswith(tags.start.strip()):
            return prompt[len(before) - len(tags.start.strip()) :]
        if end:
            return prompt[len(bare) - len(end) :]
    return ""


def _is_open(written: str, tags: ReasoningTags) -> bool:
    """Whether what is written ends inside of the reasoning."""
    _, start, inside = written.rpartition(tags.start.strip())
    return bool(start) and not any(end.strip() in inside for end in tags.ends)


def _is_closed(written: str, tags: ReasoningTags) -> bool:
    return any(end.strip() in written for end in tags.ends)


def _thinking(ask: Ask, tags: ReasoningTags | None, settings: ChatParams) -> Thinking | None:
    """Who watches the reasoning, if somebody has to: a budget, or a client that may end it."""
    if tags is None or not (ask.thinks or _is_open(ask.prefill, tags)):
        return None
    if settings.reasoning_budget < 0 and not settings.reasoning_control:
        return None
    return Thinking(
        tags.start.strip(),
        tuple(end.strip() for end in tags.ends),
        _is_open(ask.prefill, tags),
        settings.reasoning_budget,
        settings.reasoning_budget_message,
    )
