"""Llama 4, and others that write calls as a Python list: `[get_weather(city="Paris"), get_time()]`."""

from __future__ import annotations

from minka.chat.formats.bare import Bare
from minka.chat.formats.format import Family, Format
from minka.chat.formats.python_text import PythonCall
from minka.chat.formats.reasoning import think_tags


def _make(source: str) -> Format | None:
    if "[func_name1(" not in source:
        return None
    return Bare(
        "pythonic",
        PythonCall(),
        r"\[[ \t\n]*[a-zA-Z_][a-zA-Z0-9_.-]*\(",
        open="[",
        close="]",
        reasoning=think_tags(source),
    )


FAMILY = Family(rank=55, make=_make)
