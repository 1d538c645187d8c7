"""Continuing an assistant's message."""

from __future__ import annotations

import pytest

from minka.chat.messages import Message, TextPart, ToolCall
from minka.chat.prefill import Continuation, Prefill, decode_prefill
from minka.chat.template import LegacyTemplate, Template
from minka.errors import RequestError
from tests.chat import sources
from tests.chat.sources import template

USER = Message("user", "hi")
BEGUN = Message("assistant", "Wh")
THOUGHT = Message("assistant", None, reasoning_content="hm")


def prompt(chosen: Template, last: Message, body: dict[str, object] | None = None, **kwargs: object) -> tuple[str, str]:
    messages = [USER, last]
    made = decode_prefill(body or {}, messages, automatic=True).prompt(chosen, messages, kwargs=kwargs)
    assert made.text.endswith(made.prefill)
    return made.text.removesuffix(made.prefill), made.prefill


@pytest.mark.parametrize(
    ("body", "last", "automatic", "expected"),
    [
        ({}, USER, True, Prefill()),
        ({"add_generation_prompt": False}, USER, True, Prefill(add_generation_prompt=False)),
        ({}, BEGUN, False, Prefill()),
        ({}, BEGUN, True, Prefill(continuation=Continuation.CONTENT)),
        ({"add_generation_prompt": True}, BEGUN, True, Prefill(continuation=Continuation.CONTENT)),
        ({"continue_final_message": False}, BEGUN, True, Prefill(continuation=Continuation.CONTENT)),
        ({"continue_final_message": True}, BEGUN, False, Prefill(continuation=Continuation.CONTENT)),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            BEGUN,
            False,
            Prefill(continuation=Continuation.CONTENT),
        ),
        (
            {"continue_final_message": "content"},
            THOUGHT,
            True,
            Prefill(continuation=Continuation.CONTENT, explicit=True),
        ),
        (
            {"continue_final_message": "reasoning_content"},
            BEGUN,
            True,
            Prefill(continuation=Continuation.REASONING, explicit=True),
        ),
        ({}, THOUGHT, True, Prefill(continuation=Continuation.REASONING)),
    ],
)
def test_decode(body: dict[str, object], last: Message, automatic: bool, expected: Prefill) -> None:
    assert decode_prefill(body, [USER, last], automatic=automatic) == expected


@pytest.mark.parametrize(
    ("body", "last", "text"),
    [
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            BEGUN,
            "Cannot set both add_generation_prompt and continue_final_message to true.",
        ),
        ({"continue_final_message": True}, USER, "assistant message at the end"),
        ({"continue_final_message": "tool_calls"}, BEGUN, "reasoning_content"),
        ({"continue_final_message": 1}, BEGUN, "true, false"),
        ({"add_generation_prompt": "yes"}, USER, "true or false"),
        (
            {},
            Message("assistant", None, tool_calls=(ToolCall("c", "f", "{}"),)),
            "Cannot continue an assistant message that contains tool calls.",
        ),
    ],
)
def test_refused(body: dict[str, object], last: Message, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_prefill(body, [USER, last], automatic=True)
    assert text in caught.value.message
    assert caught.value.param


def test_content_follows_the_header() -> None:
    assert prompt(template(sources.STRING_ONLY), BEGUN) == ("<s><user>hi</user>\n<assistant>", "Wh")


def test_parts_are_paragraphs() -> None:
    parts = Message("assistant", (TextPart("Wh"), TextPart("ill")))
    assert prompt(template(sources.STRING_ONLY), parts)[1] == "Wh\n\nill"
    assert prompt(template(sources.TYPED_ONLY), parts)[1] == "Wh\n\nill"


def test_white_space_of_the_text_is_kept() -> None:
    trims = template("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}")
    assert prompt(trims, Message("assistant", " Wh "))[1] == "<assistant> Wh "


def test_without_continuation_it_is_a_plain_rendering() -> None:
    chosen = template(sources.STRING_ONLY)
    assert Prefill().render(chosen, [USER]) == "<s><user>hi</user>\n<assistant>"
    assert Prefill(add_generation_prompt=False).render(chosen, [USER]) == "<s><user>hi</user>\n"
    assert Prefill().prompt(chosen, [USER]).prefill == ""


def test_reasoning_in_front_of_content() -> None:
    both = Message("assistant", "Wh", reasoning_content="hm")
    chosen = template(sources.THINKING)
    assert prompt(chosen, both) == ("<|user|>\nhi<|end|>\n<|assistant|>\n", "<think>\nhm\n</think>\nWh")
    assert prompt(chosen, THOUGHT)[1] == "<think>\nhm"


def test_an_opened_reasoning_is_closed_before_content() -> None:
    chosen = template(sources.OPENS_THINKING)
    header = "<|user|>hi<|end|><|assistant|><think>\n"
    assert prompt(chosen, BEGUN) == (header, "\n</think>\n\nWh")
    assert prompt(chosen, THOUGHT) == (header, "hm")
    assert prompt(chosen, Message("assistant", "Wh", reasoning_content="hm")) == (header, "hm\n</think>\n\nWh")


def test_channels() -> None:
    chosen = template(sources.CHANNELS)
    assert prompt(chosen, BEGUN)[1] == "<|channel|>final<|message|>Wh"
    assert prompt(chosen, THOUGHT)[1] == "<|channel|>analysis<|message|>hm"


def test_a_template_without_reasoning_cannot_continue_any() -> None:
    chosen = template(sources.STRING_ONLY)
    with pytest.raises(RequestError, match="Cannot continue the reasoning"):
        prompt(chosen, THOUGHT, {"continue_final_message": "reasoning_content"})
    assert prompt(chosen, THOUGHT) == ("<s><user>hi</user>\n<assistant>", "")


def test_an_empty_reasoning_block_gives_way_to_a_real_one() -> None:
    both = Message("assistant", "Wh", reasoning_content="hm")
    chosen = template(sources.THINKING)
    header = "<|user|>\nhi<|end|>\n<|assistant|>\n"
    assert prompt(chosen, BEGUN, enable_thinking=False) == (header + "<think>\n\n</think>\n", "Wh")
    assert prompt(chosen, both, enable_thinking=False) == (header, "<think>\nhm\n</think>\nWh")
    assert prompt(chosen, THOUGHT, enable_thinking=False) == (header, "<think>\nhm")


def test_the_text_may_look_like_our_mark() -> None:
    chosen = template(sources.STRING_ONLY)
    messages = [Message("user", "prb-continued-here"), BEGUN]
    made = decode_prefill({}, messages, automatic=True).prompt(chosen, messages)
    assert made.text == "<s><user>prb-continued-here</user>\n<assistant>Wh"


def test_legacy_templates_continue_too() -> None:
    chosen = LegacyTemplate(
        "x", lambda _, chat, add: "".join(f"[{r}]{t}" for r, t in chat) + ("[assistant]" if add else "")
    )
    assert prompt(chosen, BEGUN) == ("[user]hi[assistant]", "Wh")
