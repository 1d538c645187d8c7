"""The templates by name, compared with libllama's own formatting."""

from __future__ import annotations

import ctypes
from typing import Protocol

import pytest

from minka.chat.builtin import BUILTIN
from minka.chat.messages import Message
from minka.chat.program import Program
from minka.chat.template import select_template

Chat = list[tuple[str, str]]
CHATS: list[Chat] = [
    [("user", "Hello")],
    [("system", "S"), ("user", "a")],
    [
        ("system", " You are  "),
        ("user", " Hello "),
        ("assistant", "  Hi there "),
        ("user", 'Who "are" <you>?'),
        ("assistant", "   I am   "),
        ("user", " q\n"),
    ],
    [("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d")],
    [("user", "a"), ("tool", "b"), ("assistant", "c")],
    [("user", "a"), ("function", "b"), ("user", "c")],
]


class Llama(Protocol):
    """What the tests use of llama_cpp."""

    def llama_chat_message(self, *, role: bytes, content: bytes) -> object: ...
    def llama_chat_builtin_templates(self, output: object, length: int) -> int: ...
    def llama_chat_apply_template(
        self,
        name: bytes,
        chat: object,
        n: int,
        add: bool,
        buffer: object,
        length: int,
    ) -> int: ...


@pytest.fixture(scope="module")
def llama() -> Llama:
    library: Llama = pytest.importorskip("llama_cpp", reason="libllama is not installed")
    return library


def apply(llama: Llama, name: str, chat: Chat, *, add: bool) -> str:
    messages = [llama.llama_chat_message(role=role.encode(), content=text.encode()) for role, text in chat]
    array = (type(messages[0]) * len(messages))(*messages)  # type: ignore[operator]  # a ctypes array type
    buffer = ctypes.create_string_buffer(1 << 16)
    size = llama.llama_chat_apply_template(name.encode(), array, len(messages), add, buffer, len(buffer))
    assert 0 <= size < len(buffer)
    return buffer.raw[:size].decode()


def test_all_names_of_libllama_are_there(llama: Llama) -> None:
    names = (ctypes.c_char_p * 200)()
    count = llama.llama_chat_builtin_templates(names, len(names))
    assert {name.decode() for name in names[:count] if name} <= set(BUILTIN)


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_the_text_is_libllamas(llama: Llama, name: str) -> None:
    program = Program(BUILTIN[name])
    for chat in CHATS:
        messages = [{"role": role, "content": text} for role, text in chat]
        for add in (True, False):
            rendered = program.render({"messages": messages, "add_generation_prompt": add})
            assert rendered == apply(llama, name, chat, add=add), (chat, add)


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_one_takes_a_conversation(name: str) -> None:
    chosen = select_template(None, None, name)
    text = chosen.render(
        [Message("system", "S-y"), Message("user", "U-r"), Message("assistant", "A-t"), Message("user", "V-r")]
    )
    for word in ("S-y", "U-r", "A-t", "V-r"):
        assert word in text
    assert chosen.caps.supports_string_content
