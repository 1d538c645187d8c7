from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest

from minka.errors import UsageError
from minka.tools.bench_prompts import Conversation, Dataset, MultiTurn, Random, SharedPrefix, prose, read_dataset


def take(dataset: Dataset, n: int, seed: str = "1", ratio: float = 1.0) -> list[Conversation]:
    return list(islice(dataset.conversations(ratio, seed), n))


@pytest.mark.parametrize("dataset", [Random(20), SharedPrefix(30, 20), MultiTurn(3, 20)])
def test_prompts_are_the_seeds(dataset: Dataset) -> None:
    assert take(dataset, 3) == take(dataset, 3)
    assert take(dataset, 3) != take(dataset, 3, seed="2")


def test_random_prompts_have_their_length_and_nothing_in_common() -> None:
    first, second = take(Random(20), 2)
    assert len(first.turns[0].split()) == 20
    assert not first.system
    assert first.turns[0].split()[:4] != second.turns[0].split()[:4]
    assert len(take(Random(20), 1, ratio=2.0)[0].turns[0].split()) == 10
    assert len(take(Random(1), 1, ratio=50.0)[0].turns[0].split()) == 1


def test_a_shared_prefix_is_the_same_for_all() -> None:
    first, second = take(SharedPrefix(30, 5), 2)
    assert first.system == second.system
    assert len(first.system.split()) == 30
    assert first.turns != second.turns
    assert "30 + 5" in SharedPrefix(30, 5).name


def test_a_conversation_has_its_turns() -> None:
    (conversation,) = take(MultiTurn(4, 6), 1)
    assert [len(turn.split()) for turn in conversation.turns] == [6] * 4


def test_prose_is_sentences() -> None:
    text = prose(random.Random(1), 14)
    assert text.startswith("The ")
    assert text.endswith(".")
    assert len(text.split()) == 14


def test_a_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\ntwo words\n")
    dataset = read_dataset(path)
    found = take(dataset, 4)
    assert sorted(conversation.turns[0] for conversation in found) == ["one", "one", "two words", "two words"]
    assert dataset.name == "prompts.txt, 2 conversations"


def test_json_lines_of_many_forms(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    messages = [
        {"role": r, "content": c} for r, c in (("system", "s"), ("user", "a"), ("assistant", "x"), ("user", "b"))
    ]
    entries = [
        "plain", {"prompt": "p"}, {"question": "q", "answer": "no"}, {"text": "t"}, {"turns": ["a", "b"]},
        {"messages": messages},
    ]  # fmt: skip
    path.write_text("\n".join(json.dumps(entry) for entry in entries))
    assert read_dataset(path).found == (
        Conversation(("plain",)),
        Conversation(("p",)),
        Conversation(("q",)),
        Conversation(("t",)),
        Conversation(("a", "b")),
        Conversation(("a", "b"), "s"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts"),
        ("{", "line 1 .*no JSON"),
        ('"x"\n{}', "line 2 .*neither turns"),
        ('{"turns": []}', "neither"),
        ('{"prompt": 5}', "neither"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "system, user or assistant"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "no user message"),
    ],
)
def test_another_form_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_dataset(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("missing", "binary"):
        with pytest.raises(UsageError, match=name):
            read_dataset(tmp_path / name)
