"""GigaChat 3: one JSON object, behind a message of its own (3.0) or a tag (3.1)."""

from __future__ import annotations

from minka.chat.formats.calls import JsonCall
from minka.chat.formats.format import Family, Format
from minka.chat.formats.shape import Shape

SEPARATOR = "<|message_sep|>"
"""What ends a message; whether it also ends the generation is up to the model's file."""
MESSAGE = f"{SEPARATOR}\n\nfunction call<|role_sep|>\n"
TAG = "<|function_call|>"


def _make(source: str) -> Format | None:
    if "<|role_sep|>" not in source or "<|message_sep|>" not in source:
        return None
    is_tag = TAG in source
    return Shape(
        "gigachat-v3.1" if is_tag else "gigachat-v3",
        JsonCall(),
        call_open=TAG if is_tag else MESSAGE,
        tail=SEPARATOR,
        # In 3.0 it begins a call, too.
        stops=(SEPARATOR,) if is_tag else (),
        more_marks=(SEPARATOR, "<|role_sep|>"),
    )


FAMILY = Family(rank=30, make=_make)
