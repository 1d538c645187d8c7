"""Texts and task files for the scoring tools, the same on every machine, and what llama-perplexity printed for them.

The numbers were printed by llama-perplexity (llama.cpp 0.5.0-dev, x86-64) for the model `tiny_models("llama")`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

WORDS = (
    "the cat dog man woman walks runs over under a red big small house tree then sits eats sleeps looks at her his "
    "happily slowly river stone with and but she he they go"
)


def sentence(rng: random.Random, n_words: int) -> str:
    return " ".join(rng.choice(WORDS.split()) for _ in range(n_words))


def story(n_sentences: int = 120) -> str:
    """About 2,000 tokens of the tiny model's vocabulary."""
    rng = random.Random(7)
    return "\n".join(sentence(rng, rng.randint(4, 12)).capitalize() + "." for _ in range(n_sentences))


def hellaswag_file(n_tasks: int = 8) -> bytes:
    rng = random.Random(3)
    lines = []
    for i in range(n_tasks):
        lines += [f"Act {i}: {sentence(rng, rng.randint(5, 12))}", str(rng.randint(0, 3))]
        lines += [f"{sentence(rng, rng.randint(2, 9))}." for _ in range(4)]
    return "\n".join(lines).encode()


def winogrande_file(n_tasks: int = 10) -> bytes:
    """Some lines are quoted, and every fifth sentence ends soon after its blank; two lines are no tasks."""
    rng = random.Random(4)
    lines = []
    for i in range(n_tasks):
        text = f"{sentence(rng, rng.randint(2, 6))} _ {sentence(rng, 0 if i % 5 == 0 else rng.randint(2, 6))}."
        text = f'"{text.replace(" ", ", ", 1)}"' if i % 3 == 0 else text
        names = rng.choice(("Sarah", "Tom Jones", "the cat")), rng.choice(("Maria", "Jim", "a big dog"))
        lines.append(f"{i},{text},{names[0]},{names[1]},{rng.randint(1, 2)}")
    lines[4:4] = ["no task", "9,it has no blank,a,b,1"]
    return "\n".join(lines).encode() + b"\n"


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _answers(texts: Sequence[str], labels: Sequence[int]) -> bytes:
    return struct.pack("<I", len(texts)) + b"".join(map(_string, texts)) + struct.pack(f"<{len(labels)}i", *labels)


def choice_file(n_tasks: int = 8) -> bytes:
    rng = random.Random(5)
    tasks = []
    for _ in range(n_tasks):
        n = rng.randint(2, 4)
        answers, right = [sentence(rng, rng.randint(1, 6)) for _ in range(n)], rng.randrange(n)
        listed = _answers(answers, [int(i == right) for i in range(n)])
        tasks.append(_string(f"Q: {sentence(rng, rng.randint(3, 9))}? A:") + listed + listed)
    offsets, at = [], 4 + 4 * n_tasks
    for task in tasks:
        offsets.append(at)
        at += len(task)
    return struct.pack(f"<I{n_tasks}I", n_tasks, *offsets) + b"".join(tasks)
