from __future__ import annotations

import pytest

from minka.errors import RequestError
from minka.protocols.slot_files import decode_action, decode_filename, decode_salt, decode_slot


@pytest.mark.parametrize(
    "name",
    [
        "slot1.bin",
        "a",
        ".hidden",
        "with space.bin",
        "Größe.bin",
        "日本語",
        "a.b.c",
        "x" * 255,
        "-",
        "~",
        "%2e",
        "a\u00a0b",
    ],
)
def test_a_plain_name_is_taken(name: str) -> None:
    assert decode_filename({"filename": name}) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../up",
        "a..b",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a:b",
        "a*",
        "a?",
        'a"',
        "<a",
        "a>",
        "a|b",
        " a",
        "a ",
        "a.",
        "a\0b",
        "a\nb",
        "a\x1f",
        "a\x7f",
        "a\x80",
        "a\x9f",
        "a\uff0e",
        "a\u2215b",
        "a\u2216b",
        "\ufeffa",
        "a\ufffd",
        "x" * 256,
        "ü" * 128,
    ],
)
def test_a_name_that_could_lead_elsewhere_or_nowhere_is_refused(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_filename({"filename": name})
    assert str(caught.value) == "Invalid filename"
    assert caught.value.param == "filename"


def test_half_a_surrogate_pair_is_no_name() -> None:
    with pytest.raises(RequestError, match="Invalid filename"):
        decode_filename({"filename": "a" + chr(0xD800)})


@pytest.mark.parametrize("body", [{}, {"filename": None}, {"filename": 3}, {"filename": ["a"]}])
def test_a_name_is_required(body: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        decode_filename(body)
    assert caught.value.param == "filename"


def test_a_slot_is_a_number() -> None:
    assert decode_slot("12") == 12
    for text in ("", "-1", "+1", "1a", "1.0", "²", "٣", "9" * 10):
        with pytest.raises(RequestError, match="Invalid slot ID"):
            decode_slot(text)


def test_there_are_three_actions() -> None:
    assert [decode_action(text) for text in ("save", "restore", "erase")] == ["save", "restore", "erase"]
    for text in (None, "", "Save", "drop"):
        with pytest.raises(RequestError, match="Invalid action"):
            decode_action(text)


def test_a_salt_is_a_text() -> None:
    assert decode_salt({}) == ""
    assert decode_salt({"cache_salt": "me"}) == "me"
    with pytest.raises(RequestError):
        decode_salt({"cache_salt": 3})
