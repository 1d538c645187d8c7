"""Chat templates: which one a model uses, what it can do, and the prompt it makes of a conversation.

`select_template` chooses; `ChatTemplate` renders Jinja; `LegacyTemplate` asks libllama's fixed list, through a function
handed in from outside. Nothing here knows tokens: a prompt is text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Protocol

from minka.chat.adapt import Quirks, adapt
from minka.chat.budget import Limits
from minka.chat.builtin import BUILTIN
from minka.chat.formats.families import find_family
from minka.chat.formats.format import Format
from minka.chat.messages import Message
from minka.chat.probe import probe
from minka.chat.profile import (
    Caps,
    Json,
    Profile,
    ReasoningMarks,
    common_prefix,
    preserve_reasoning,
    reasoning_effort,
)
from minka.chat.program import Clock, Program, local_time
from minka.errors import ModelError, RequestError, UnsupportedError, UsageError

log = logging.getLogger(__name__)

Tools = Sequence[Mapping[str, object]]
Apply = Callable[[str, Sequence[tuple[str, str]], bool], str]
"""libllama's `llama_chat_apply_template`: (template name or source, (role, text) pairs, add_generation_prompt) -> text.
Raises ValueError if the template is none it knows."""

NO_KWARGS: Mapping[str, object] = {}
PROBE_LIMITS = Limits(n_chars=1 << 20, n_bytes=1 << 26, cpu_s=0.5)
RESERVED_KWARGS = frozenset({"messages", "tools", "add_generation_prompt"})

GPT_OSS_CHECK = (
    '{%- if "<|channel|>analysis<|message|>" in message.content or "<|channel|>final<|message|>" in message.content %}'
)
MISTRAL_CHECK = (
    "{%- if (message['content'] is none or message['content'] == '' or message['content']|length == 0) and "
    "(message['tool_calls'] is not defined or message['tool_calls'] is none or message['tool_calls']|length == 0) %}"
)


class Template(Protocol):
    """What turns messages into a prompt."""

    @property
    def source(self) -> str:
        """The template's text, or the name of a built-in one in legacy mode."""

    @property
    def tool_use_source(self) -> str | None:
        """The text of the template that is used when tools are given, if the model has a second one."""

    @property
    def caps(self) -> Caps:
        """What the template supports."""

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """The text around an assistant's reasoning, None if the template knows no reasoning."""

    def check(self) -> None:
        """Raises ModelError if the template cannot be used at all; for start-up."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, object] = NO_KWARGS,
    ) -> str:
        """The prompt. `kwargs` are further template variables (`chat_template_kwargs`), which win over our own.

        Raises RequestError with the template's message if it refuses the conversation, ModelError if the template is
        broken.
        """


class ChatTemplate:
    """A Jinja template with the token texts it needs, and what was found out about it. Thread-safe.

    `tool_use_source` renders the conversations that come with tools. `add_bos`: the tokenizer puts BOS in front by
    itself, so it is cut from the prompt's start; `add_eos` likewise for EOS at its end.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        tool_use_source: str | None = None,
        add_bos: bool = False,
        add_eos: bool = False,
        clock: Clock = local_time,
    ) -> None:
        self._tokens = (bos_token, eos_token)
        self._cut = (bos_token if add_bos else "", eos_token if add_eos else "")
        self._clock = clock
        self._plain = _Variant(source, self._base, clock)
        self._tool_use = _Variant(tool_use_source, self._base, clock) if tool_use_source else None

    @property
    def source(self) -> str:
        """The template as the model's author wrote it."""
        return self._plain.source

    @property
    def tool_use_source(self) -> str | None:
        """The template for conversations with tools, None if there is no other."""
        return self._tool_use.source if self._tool_use else None

    @property
    def caps(self) -> Caps:
        """What the template supports; of the tool-use one if there is one, as it can do more."""
        return (self._usable_tool_use or self._plain).profile.caps

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """The text around an assistant's reasoning, None if the template knows no reasoning."""
        return self._plain.profile.reasoning_marks

    def check(self) -> None:
        """Compile now. Raises ModelError if the template is no valid Jinja; a broken tool-use one is only logged."""
        self._plain.program.check()
        _ = self._usable_tool_use

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, object] = NO_KWARGS,
    ) -> str:
        """The prompt for a conversation; see `Template.render`."""
        variant = (self._usable_tool_use if tools else None) or self._plain
        return self._without_added_tokens(variant.render(messages, tools or (), add_generation_prompt, kwargs))

    @cached_property
    def _usable_tool_use(self) -> _Variant | None:
        try:
            if self._tool_use is not None:
                self._tool_use.program.check()
        except ModelError as error:
            log.warning("the model's tool_use template is ignored: %s", error)
            return None
        return self._tool_use

    def _base(self) -> Json:
        now = self._clock()
        bos, eos = self._tokens
        return {
            "bos_token": bos,
            "eos_token": eos,
            "datetime": now.strftime("%b %d %Y"),
            "date_string": now.strftime("%d %b %Y"),
        }

    def _without_added_tokens(self, prompt: str) -> str:
        bos, eos = self._cut
        prompt = prompt.removeprefix(bos)
        return prompt.removesuffix(eos)


class _Variant:
    """One source with its compiled program and its profile."""

    def __init__(self, source: str, base: Callable[[], Json], clock: Clock) -> None:
        self.source = source
        self.program = Program(_patched(source), clock)
        self._base = base
        self._quirks = Quirks.of(source)

    @cached_property
    def _family(self) -> Format | None:
        return find_family(self.source)

    @cached_property
    def profile(self) -> Profile:
        self.program.check()
        return probe(self._try)

    def render(
        self, messages: Sequence[Message], tools: Tools, add_generation_prompt: bool, kwargs: Mapping[str, object]
    ) -> str:
        reserved = RESERVED_KWARGS.intersection(kwargs)
        if reserved:
            name = sorted(reserved)[0]
            raise RequestError(
                f"chat_template_kwargs cannot set {name!r}: send it as a field of the request",
                param=f"chat_template_kwargs.{name}",
            )
        write = self._family.write if self._family else None
        wire, described = adapt(messages, tools, self.profile, self._quirks, write)
        variables = self._variables({"messages": wire, "add_generation_prompt": add_generation_prompt}, kwargs)
        if described:
            variables["tools"] = described
        return self.program.render(self._quirks.extended(variables))

    def _variables(self, own: Mapping[str, object], kwargs: Mapping[str, object]) -> Json:
        derived: Json = {}
        keep, effort = kwargs.get("preserve_reasoning"), kwargs.get("reasoning_effort")
        if isinstance(keep, bool):
            derived.update(preserve_reasoning(preserve=keep))
        if isinstance(effort, str) and effort:
            derived.update(reasoning_effort(effort))
        return {**self._base(), "enable_thinking": self.profile.thinking, **own, **derived, **kwargs}

    def _try(self, variables: Mapping[str, object]) -> str | None:
        try:
            return self.program.render(
                self._quirks.extended({**self._base(), "enable_thinking": True, **variables}), PROBE_LIMITS
            )
        except RequestError:
            return None


class LegacyTemplate:
    """A template that libllama recognises by its text or its name and applies without Jinja (`--no-jinja`).

    It knows roles and texts only: no tools, no reasoning, no variables.
    """

    caps = Caps(supports_system_role=True)
    tool_use_source: str | None = None
    reasoning_marks: ReasoningMarks | None = None

    def __init__(self, name_or_source: str, apply: Apply) -> None:
        self.source = name_or_source
        self._apply = apply

    def check(self) -> None:
        """Raises ModelError if libllama does not know the template."""
        self.render([Message("user", "test")])

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, object] = NO_KWARGS,
    ) -> str:
        """The prompt; `kwargs` have no meaning here. Raises UnsupportedError if tools are given."""
        if tools:
            raise UnsupportedError("tools param requires --jinja flag", param="tools")
        chat = [(message.role, message.text()) for message in messages]
        try:
            return self._apply(self.source, chat, add_generation_prompt)
        except ValueError:
            raise ModelError("this custom template is not supported, try using --jinja") from None


def select_template(
    model_template: str | None,
    model_tool_use: str | None,
    override: str | None,
    *,
    bos_token: str = "",
    eos_token: str = "",
    add_bos: bool = False,
    add_eos: bool = False,
    legacy: Apply | None = None,
) -> Template:
    """The template to use: the user's `override` (a built-in name or a source), else the model's, else ChatML.

    A model that has only a tool-use template uses it for everything. `legacy` set means `--no-jinja`. Raises UsageError
    for one word that is no name: as a template, a misspelt name would be every prompt.
    """
    is_word = bool(override) and not any(char.isspace() or char == "{" for char in override or "")
    if override and is_word and override not in BUILTIN and legacy is None:
        near = get_close_matches(override[:64], BUILTIN, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; the names are {', '.join(BUILTIN)}"
        raise UsageError(f"the chat template {override[:64]!r} is no built-in one and no Jinja{hint}")
    source = override or model_template
    tool_use = None if override else model_tool_use
    if not source or source == "chatml":
        source = tool_use or "chatml"
    if legacy is not None:
        return LegacyTemplate(source, legacy)
    return ChatTemplate(
        BUILTIN.get(source, source),
        bos_token=bos_token,
        eos_token=eos_token,
        tool_use_source=tool_use,
        add_bos=add_bos,
        add_eos=add_eos,
    )


def generation_prompt(
    template: Template,
    messages: Sequence[Message],
    *,
    tools: Tools | None = None,
    kwargs: Mapping[str, object] = NO_KWARGS,
) -> str:
    """What `add_generation_prompt` adds at the end: the header of the answer, with a reasoning tag if one is opened."""
    without = template.render(messages, tools=tools, add_generation_prompt=False, kwargs=kwargs)
    prompt = template.render(messages, tools=tools, add_generation_prompt=True, kwargs=kwargs)
    return prompt[len(common_prefix(without, prompt)) :]


def _patched(source: str) -> str:
    """Without two checks, as llama.cpp drops them: they refuse conversations that clients send and models understand.

    gpt-oss: content with channel markers in it. Mistral: an assistant message with neither content nor calls.
    """
    if "<|channel|>" in source:
        source = source.replace(GPT_OSS_CHECK, "{%- if false %}")
    if "[TOOL_CALLS]" in source:
        source = source.replace(MISTRAL_CHECK, "{%- if false %}")
    return source
