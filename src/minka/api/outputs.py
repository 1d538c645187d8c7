"""What a caller gets: frozen values. The same types tell of a text that is done and of one that is on its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minka.types import Timings, TokenLogprobs, Vectors


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion of a prompt.

    `text` and `token_ids` are all of it so far; `token_ids` has the tokens of a stop string and the end token, too.
    `delta` is what `text` grew by since the output before, in a stream. `finish_reason` is "stop" or "length", None
    while it goes on; `stop_reason` the stop string that ended it. `logprobs` has an entry for each token of the text,
    None if not asked for. `message` is the assistant's message of a chat, in OpenAI's form, once it is complete.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    delta: str = ""
    finish_reason: str | None = None
    stop_reason: str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    timings: Timings | None = None
    message: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingOutput:
    """The vector of a text: float32, shape (n_embd,), or (n_tokens, n_embd) with `pooling="none"`.

    `prompt` is the text, None if it was given as token ids.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    embedding: Vectors


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The completions of one prompt. `prompt` is its text, None if it was given as token ids."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool

    @property
    def text(self) -> str:
        """The first completion's text."""
        return self.outputs[0].text
