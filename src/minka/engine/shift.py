"""What is dropped of a text that fills its context, so that it can go on. Pure: llama-server's rule, on numbers.

The rest keeps its keys and values, turned to the new positions. They were computed while the dropped part was there, so
from the cut on the sequence is no longer what computing its tokens would give.
"""

from __future__ import annotations

from dataclasses import dataclass

from minka.types import Job

MARGIN = 4
"""Positions at the end of a context that `n_keep` cannot reach."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Positions `keep` to `keep + discard - 1` are dropped, and those behind them move up to `keep`."""

    keep: int
    discard: int

    @property
    def end(self) -> int:
        """The first position that moves."""
        return self.keep + self.discard

    def apply(self, tokens: list[int]) -> list[int]:
        """What is left of the tokens."""
        return tokens[: self.keep] + tokens[self.end :]


def context_shift(job: Job, n_past: int, n_ctx: int, *, add_bos: bool) -> Shift:
    """The shift of a sequence of `n_past` positions that has no room for another one in a context of `n_ctx`.

    At least one position is dropped, whatever the job asks for. See server_context::pre_decode of llama.cpp.
    """
    wanted = len(job.prompt) if job.n_keep < 0 else job.n_keep
    keep = max(0, min(wanted + add_bos, n_ctx - MARGIN))
    left = n_past - keep
    return Shift(keep, max(1, min(job.n_discard or left // 2, left - 1)))
