from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.engine.text import TextStream
from tests.engine.rig import cut_at_stop

# Few letters and long characters, so that stop strings overlap, repeat and are cut inside a character.
LETTERS = st.sampled_from(["a", "b", "c", "é", "东", "🤖"])
WORDS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)
TEXTS = st.text(LETTERS, max_size=24)


def pieces_of(raw: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return [raw[a:b] for a, b in pairwise(edges)]


def run(pieces: Sequence[bytes], stop: Sequence[str]) -> tuple[list[str], str]:
    """What a stream shows after each piece (and at the flush), and the stop string that ended it."""
    stream, shown = TextStream(tuple(stop)), []
    for piece in pieces:
        shown.append(stream.feed(piece))
        if stream.stopped:
            return shown, stream.stop_word
    return [*shown, stream.flush()], stream.stop_word


@given(TEXTS, WORDS, st.lists(st.integers(0, 99), max_size=12))
def test_any_cut_gives_what_the_whole_text_gives(text: str, stop: list[str], cuts: list[int]) -> None:
    shown, word = run(pieces_of(text.encode(), cuts), stop)
    assert ("".join(shown), word) == cut_at_stop(text, stop)


@given(st.binary(max_size=24), WORDS, st.lists(st.integers(0, 99), max_size=12))
def test_bytes_that_are_no_utf8_do_not_depend_on_the_cut_either(raw: bytes, stop: list[str], cuts: list[int]) -> None:
    shown, word = run(pieces_of(raw, cuts), stop)
    assert ("".join(shown), word) == cut_at_stop(raw.decode("utf-8", "replace"), stop)


@given(TEXTS, TEXTS, WORDS)
def test_nothing_shown_can_be_taken_back(text: str, rest: str, stop: list[str]) -> None:
    """What is shown after `text` is shown whatever follows."""
    shown = TextStream(tuple(stop)).feed(text.encode())
    assert cut_at_stop(text + rest, stop)[0].startswith(shown)


@given(TEXTS, WORDS)
def test_nothing_is_withheld_without_need(text: str, stop: list[str]) -> None:
    """What is withheld is the beginning of some stop string."""
    stream = TextStream(tuple(stop))
    shown = stream.feed(text.encode())
    held = "" if stream.stopped else text[len(shown) :]
    assert not held or any(word.startswith(held) and word != held for word in stop)


def test_text_without_stop_strings_is_shown_at_once() -> None:
    assert run([b"one ", b"two"], ()) == (["one ", "two", ""], "")


def test_a_character_is_shown_when_it_is_whole() -> None:
    first, second, third, fourth = (bytes([byte]) for byte in "🤖".encode())
    assert run([b"a" + first, second, third, fourth], ()) == (["a", "", "", "🤖", ""], "")


def test_an_unfinished_character_becomes_one_replacement() -> None:
    assert run(["🤖".encode()[:3]], ()) == (["", "\ufffd"], "")


def test_a_stop_string_may_be_cut_inside_a_character() -> None:
    raw = "go东".encode()
    assert run([raw[:3], raw[3:4], raw[4:]], ["东"]) == (["go", "", ""], "东")


def test_a_stop_string_is_not_shown_nor_its_beginning() -> None:
    assert run([b"he", b"llo E", b"N", b"D more"], ["END"]) == (["he", "llo ", "", ""], "END")


def test_what_turns_out_to_be_no_stop_string_is_shown() -> None:
    assert run([b"E", b"N", b"X"], ["END"]) == (["", "", "ENX", ""], "")
    assert run([b"a E", b"N"], ["END"]) == (["a ", "", "EN"], "")


def test_the_earliest_start_wins_even_if_another_is_complete_first() -> None:
    assert run([b"ab", b"c"], ["abc", "b"]) == (["", ""], "abc")
    assert run([b"ab", b"x"], ["abc", "b"]) == (["", "a"], "b")
    assert run([b"ab"], ["abc", "b"]) == (["", "a"], "b")


def test_of_two_that_start_together_the_shorter_wins() -> None:
    assert run([b"xabc"], ["abc", "ab"]) == (["x"], "ab")
    assert run([b"xa", b"bc"], ["abc", "ab"]) == (["x", ""], "ab")


def test_a_stop_string_that_overlaps_itself() -> None:
    assert run([b"aab", b"aaac"], ["aaac"]) == (["aab", ""], "aaac")
    assert run([bytes([byte]) for byte in b"aabaaac"], ["aaac"])[1] == "aaac"


@pytest.mark.parametrize("stop", [(), ("",), ("", "")])
def test_an_empty_stop_string_stops_nothing(stop: tuple[str, ...]) -> None:
    assert run([b"text"], stop) == (["text", ""], "")
