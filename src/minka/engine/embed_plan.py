"""Which texts are embedded in the next computation. Pure policy: it reads what waits and returns grants.

Higher priorities come first. Equal ones share: tenants take turns, and the requests of a tenant too, a text each, so
that a request of one text is not stuck behind one of thousands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby

from minka.engine.queue import AGING
from minka.types import EmbedJob, Vectors

MIN_PART = 16
"""Tokens of a text that is computed in parts: fewer are not worth a computation."""
MAX_SKIPS = 256
"""Texts that are looked at in vain because they do not fit; then the computation is full enough."""


@dataclass(slots=True, eq=False)
class Text:
    """A text of a request. `seq` is its sequence while it is in work, else -1; `n_done` of its tokens are computed."""

    ask: Ask
    index: int
    seq: int = -1
    n_done: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of its tokens."""
        return self.ask.job.inputs[self.index]

    @property
    def n_left(self) -> int:
        """Tokens to compute."""
        return len(self.tokens) - self.n_done


@dataclass(slots=True, eq=False)
class Ask:
    """A request in the queue. `submitted` is the engine's clock; `vectors` has a place for each text."""

    job: EmbedJob
    reply: Future[tuple[Vectors, ...]]
    submitted: float
    longest: int = field(init=False)
    """Tokens of its longest text."""
    vectors: list[Vectors | None] = field(init=False)
    open: deque[Text] = field(init=False)
    """Texts that are not done, in order; only the first ones can be in work."""

    def __post_init__(self) -> None:
        self.longest = max(map(len, self.job.inputs))
        self.vectors = [None] * len(self.job.inputs)
        self.open = deque(Text(self, index) for index in range(len(self.job.inputs)))

    def is_late(self, now: float) -> bool:
        """Whether its time is over."""
        return 0 <= self.job.timeout_ms < (now - self.submitted) * 1e3


@dataclass(slots=True, eq=False)
class Grant:
    """`n` tokens of a text go into the next computation."""

    text: Text
    n: int

    @property
    def is_last(self) -> bool:
        """Whether the text ends with them."""
        return self.n == self.text.n_left


@dataclass(frozen=True, slots=True)
class Limits:
    """`budget` tokens in the computation, but always a whole text if texts cannot be split; `n_free` sequences and
    `n_cells` cells that no text has."""

    budget: int
    n_free: int
    n_cells: int
    splits: bool


def plan(asks: Sequence[Ask], begun: Sequence[Text], limits: Limits, now: float) -> list[Grant]:
    """Grants for the next computation; empty only if nothing waits. `begun` are the texts in work.

    If the first text needs more cells than there are, nothing else is begun, so that its turn comes.
    """
    first = next(_turns(asks, now), None)
    waits = first is not None and first.seq < 0 and len(first.tokens) > limits.n_cells
    texts = begun if waits or not limits.n_free else _turns(asks, now)
    share = max(MIN_PART, limits.budget // max(len(asks), 1))
    grants: list[Grant] = []
    room, n_free, n_cells, skips = limits.budget, limits.n_free, limits.n_cells, 0
    for text in texts:
        new = text.seq < 0
        n = 0
        if not new or (n_free and len(text.tokens) <= n_cells):
            n = _part(text, room, share, splits=limits.splits, is_first=not grants)
        if not n:
            skips += 1
        else:
            grants.append(Grant(text, n))
            room -= n
            n_free -= new
            n_cells -= len(text.tokens) if new else 0
        if room <= 0 or skips > MAX_SKIPS:
            break
    return _fill(grants, room)


def _part(text: Text, room: int, share: int, *, splits: bool, is_first: bool) -> int:
    if splits:
        return min(text.n_left, room, share)
    return text.n_left if text.n_left <= room or is_first else 0


def _fill(grants: list[Grant], room: int) -> list[Grant]:
    """Give what is left to texts that were granted a part only, the earlier ones first."""
    for grant in grants:
        more = min(room, grant.text.n_left - grant.n) if room > 0 else 0
        grant.n += more
        room -= more
    return grants


def _turns(asks: Iterable[Ask], now: float) -> Iterator[Text]:
    """All texts in the order in which they should be computed."""

    def urgency(ask: Ask) -> int:
        return -(ask.job.priority + int((now - ask.submitted) / AGING))

    ranked = sorted((ask for ask in asks if ask.open), key=lambda ask: (urgency(ask), ask.submitted))
    for _urgency, equals in groupby(ranked, urgency):
        tenants: dict[str, deque[Iterator[Text]]] = {}
        for ask in equals:
            tenants.setdefault(ask.job.tenant, deque()).append(iter(ask.open))
        yield from _round_robin(deque(tenants.values()))


def _round_robin(lanes: deque[deque[Iterator[Text]]]) -> Iterator[Text]:
    while lanes:
        lane = lanes.popleft()
        while lane:
            texts = lane.popleft()
            text = next(texts, None)
            if text is not None:
                lane.append(texts)
                lanes.append(lane)
                yield text
                break
