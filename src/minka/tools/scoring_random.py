"""The random choices of C++'s standard library, so that a random subset is the one llama-perplexity takes.

std::mt19937 (the Mersenne Twister, seeded with one number) and std::uniform_int_distribution as GCC's library has it.
"""

from __future__ import annotations

import random

import numpy as np

_WORDS = 624
_MULTIPLIER = 1812433253
_MASK = 0xFFFFFFFF


class Mt19937:
    """std::mt19937(seed). Python has the same generator, but seeds it in another way."""

    def __init__(self, seed: int) -> None:
        state = [seed & _MASK]
        for i in range(1, _WORDS):
            state.append((_MULTIPLIER * (state[-1] ^ state[-1] >> 30) + i) & _MASK)
        self._random = random.Random()
        self._random.setstate((3, (*state, _WORDS), None))

    def __call__(self) -> int:
        """The next 32 bits."""
        return self._random.getrandbits(32)

    def below(self, n: int) -> int:
        """A number from 0 to n-1, by GCC's std::uniform_int_distribution (Lemire's method)."""
        product = self() * n
        if product & _MASK < n:
            threshold = -n % (1 << 32) % n
            while product & _MASK < threshold:
                product = self() * n
        return product >> 32

    def scaled(self, n: int) -> int:
        """A number from 0 to n-1, by a float32 between 0 and 1 times n."""
        at = np.float32(2**-32) * np.float32(self()) * np.float32(n)
        return min(int(at), n - 1)  # the float32 may round up to 1


def drawn_in_order(n_items: int, n_wanted: int) -> list[int]:
    """Indices of a random subset in random order, each drawn from the items that are left, which keep their order."""
    left, draw = list(range(n_items)), Mt19937(1)
    return [left.pop(draw.below(len(left))) for _ in range(min(n_wanted, n_items))]


def drawn_by_swapping(n_items: int, n_wanted: int) -> list[int]:
    """The same, but the last item that is left takes the place of the one that was drawn."""
    left, draw = list(range(n_items)), Mt19937(1)
    chosen = []
    for _ in range(min(n_wanted, n_items)):
        at = draw.scaled(len(left))
        chosen.append(left[at])
        left[at] = left[-1]
        left.pop()
    return chosen
