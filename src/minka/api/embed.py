"""Texts to vectors: from a caller's words to jobs of the engine, and from their vectors to outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from minka.api.outputs import EmbeddingOutput
from minka.api.request import Prompt
from minka.errors import RequestError
from minka.protocols.body import check_token
from minka.protocols.served import Served
from minka.protocols.vectors import facts, normalized
from minka.types import EmbedJob, Pooling, Vectors

CHUNK = 64
"""Texts in one job: enough to fill a batch, and few enough to see how it goes on."""


class Texts:
    """Texts in the form of jobs. Raises NotSupportedError if the model makes no embeddings, and RequestError."""

    def __init__(self, prompts: Sequence[Prompt], served: Served, dimensions: int | None) -> None:
        self._facts = facts(served)
        if self._facts.pooling is Pooling.RANK:
            raise RequestError("this model ranks documents (pooling rank) and makes no embeddings")
        if dimensions is not None and not 1 <= dimensions <= self._facts.width:
            raise RequestError(f'"dimensions" must be 1 to {self._facts.width}', param="dimensions")
        self._dimensions = dimensions
        self._prompts = prompts
        self._tokens = [_tokens(prompt, served) for prompt in prompts]

    def jobs(self) -> Iterator[EmbedJob]:
        """All texts, in order, some in a job."""
        tokens = iter(self._tokens)
        while chunk := tuple(islice(tokens, CHUNK)):
            yield EmbedJob(chunk)

    def outputs(self, vectors: Sequence[Vectors]) -> list[EmbeddingOutput]:
        """The outputs of all texts, whose vectors these are."""
        return [
            EmbeddingOutput(prompt if isinstance(prompt, str) else None, tokens, self._shaped(own))
            for prompt, tokens, own in zip(self._prompts, self._tokens, vectors, strict=True)
        ]

    def _shaped(self, vectors: Vectors) -> Vectors:
        if self._facts.pooling is Pooling.NONE:
            return vectors[:, : self._dimensions]
        one: Vectors = normalized(vectors[:, : self._dimensions], self._facts.normalize)[0]
        return one


def _tokens(prompt: Prompt, served: Served) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(served.tokenizer.tokenize(prompt, add_special=True, parse_special=True))
    return tuple(check_token(token, served.tokenizer, "prompt") for token in prompt)
