"""The generating side of a model that cannot generate: an engine needs one, and this one is always empty.

Every sequence has length 0; what would compute text is refused with the sentence that a client gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from minka.errors import NotSupportedError
from minka.native.protocol import Block, Decoded, Logits, Sampler
from minka.params import Adapters, SamplingParams
from minka.types import Adapter, Tokenizer


class Textless:
    """Implements `protocol.Backend`. `n_seq_max` idle slots are what `/slots` and health checks expect to see."""

    kv_unified = True
    n_graphs_reused = 0
    can_shift = can_splice = sliceable = False
    fingerprint = ""

    def __init__(self, vocab: Tokenizer, *, n_seq_max: int, n_ctx: int) -> None:
        self.vocab = vocab
        self.n_seq_max = self.n_rows = n_seq_max
        self.n_ctx = self.n_ctx_seq = self.n_batch = n_ctx

    def _refuse(self) -> NoReturn:
        raise NotSupportedError("this model makes embeddings only: it cannot generate text")

    def warm_up(self) -> None:
        """See Backend: there is nothing to run."""

    def add(self, seq: int, tokens: Sequence[int], pos: int, *, logits: int) -> int:
        """See Backend: refused."""
        self._refuse()

    def adapt(self, adapters: Adapters) -> None:
        """See Backend: refused, if there are any."""
        self.check_adapters(adapters)

    def check_adapters(self, adapters: Adapters) -> None:
        """See Backend: refused, if there are any."""
        if adapters:
            self._refuse()

    def load_adapter(self, path: Path, scale: float) -> Adapter:
        """See Backend: refused."""
        self._refuse()

    def unload_adapter(self, id: int) -> None:
        """See Backend: refused."""
        self._refuse()

    def decode(self) -> Decoded:
        """See Backend: refused."""
        self._refuse()

    def discard(self) -> None:
        """See Backend."""

    def logits(self, row: int) -> Logits:
        """See Backend: refused."""
        self._refuse()

    def sampler(self, params: SamplingParams, seed: int) -> Sampler:
        """See Backend: refused, and with it every job, since a job's sampler is the first thing that it needs."""
        self._refuse()

    def share(self, src: int, dst: int, n: int) -> None:
        """See Backend: refused."""
        self._refuse()

    def shift(self, seq: int, keep: int, discard: int) -> None:
        """See Backend: refused."""
        self._refuse()

    def cut(self, seq: int, n: int) -> None:
        """See Backend: there is nothing to drop."""

    def floor(self, seq: int) -> int:
        """See Backend."""
        return 0

    def length(self, seq: int) -> int:
        """See Backend."""
        return 0

    def extract(self, seq: int, ranges: Sequence[tuple[int, int]]) -> Sequence[Block]:
        """See Backend: refused."""
        self._refuse()

    def insert(self, seq: int, blocks: Sequence[Block]) -> bool:
        """See Backend: refused."""
        self._refuse()

    def block(self, raw: bytes) -> Block:
        """See Backend: refused."""
        self._refuse()

    def save(self, seq: int) -> bytes:
        """See Backend: refused."""
        self._refuse()

    def restore(self, seq: int, state: bytes) -> bool:
        """See Backend: refused."""
        self._refuse()

    def portable(self, state: bytes) -> bytes:
        """See Backend: refused."""
        self._refuse()

    def adopt(self, state: bytes) -> bytes:
        """See Backend: refused."""
        self._refuse()

    def close(self) -> None:
        """See Backend: there is nothing to free."""
