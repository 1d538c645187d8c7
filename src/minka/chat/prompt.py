"""From the body of a chat request to the text, and the tokens, of its prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from minka.chat.messages import Message, decode_messages
from minka.chat.prefill import Prefill, decode_prefill
from minka.chat.template import Template
from minka.errors import RequestError
from minka.types import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """What a chat request says about its prompt."""

    messages: tuple[Message, ...]
    prefill: Prefill
    kwargs: Mapping[str, object]

    def render(self, template: Template, defaults: Mapping[str, object]) -> str:
        """The prompt's text; `defaults` are the server's template variables, which the request's own win over."""
        return self.prefill.render(template, self.messages, kwargs={**defaults, **self.kwargs})


def decode_prompt(body: Mapping[str, object], *, prefill: bool) -> ChatPrompt:
    """Read `messages` and the fields around them. Raises RequestError that names the field."""
    messages = decode_messages(body.get("messages"))
    return ChatPrompt(messages, decode_prefill(body, messages, automatic=prefill), _kwargs(body))


def _kwargs(body: Mapping[str, object]) -> Mapping[str, object]:
    kwargs = body.get("chat_template_kwargs")
    if kwargs is None:
        return {}
    if not isinstance(kwargs, dict):
        raise RequestError('"chat_template_kwargs" must be an object', param="chat_template_kwargs")
    if not isinstance(kwargs.get("enable_thinking", True), bool):
        raise RequestError(
            '"chat_template_kwargs.enable_thinking" must be true or false', param="chat_template_kwargs.enable_thinking"
        )
    return kwargs


def parse_kwargs(text: str) -> Mapping[str, object]:
    """The server's `--chat-template-kwargs`, which the command line checked to be a JSON object."""
    value = json.loads(text)
    assert isinstance(value, dict), "checked by the parameter table"
    return value


def prompt_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """Tokens of a rendered prompt: special tokens are parsed, and BOS and EOS added where the vocabulary wants them."""
    return tokenizer.tokenize(text, add_special=True, parse_special=True)
