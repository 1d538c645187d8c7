"""What a protocol knows of the model that is served: names, sizes, defaults, tokenizer, template. All read-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minka.chat.formats.content_only import CONTENT_ONLY
from minka.chat.formats.format import Format
from minka.chat.template import Template
from minka.chat.turn import ChatModel
from minka.grammar.compiler import Grammars
from minka.params import ChatParams, GenerationParams, SamplingParams
from minka.protocols.constraint import Content
from minka.protocols.responses_store import Shelf
from minka.types import Adapter, FimTokens, Pooling, RankFrame, Tokenizer


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of the model file, as `/v1/models` and `/props` show them."""

    path: str
    name: str
    aliases: tuple[str, ...]
    tags: tuple[str, ...]
    description: str
    ftype: str
    vocab_type: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    """Bytes of the weights."""


@dataclass(frozen=True, slots=True)
class EmbeddingFacts:
    """How the model embeds: `width` numbers a vector, whose norm is `normalize` unless a request says another.

    `only`: the model cannot do anything else.
    """

    pooling: Pooling
    width: int
    normalize: int = 2
    frame: RankFrame = field(default_factory=RankFrame)
    only: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """One model with the server's defaults for it.

    `n_ctx` is the context of a slot in tokens, `max_jobs` how many completions the engine takes at once, `created` the
    Unix time of loading, `build` the `system_fingerprint`.
    """

    model: ModelFacts
    tokenizer: Tokenizer
    template: Template
    n_ctx: int
    n_slots: int
    max_jobs: int
    created: int
    build: str
    sampling: SamplingParams
    generation: GenerationParams
    prefill_assistant: bool
    template_kwargs: Mapping[str, object]
    n_batch: int = 2048
    """Tokens that are computed at once."""
    fim: FimTokens | None = None
    """The tokens of fill-in-the-middle prompts, None if the model knows none."""
    adapters: tuple[Adapter, ...] = ()
    """The LoRA adapters, by id. Loading one makes a new value of this class."""
    embeddings: EmbeddingFacts | None = None
    """None if the server embeds nothing."""
    format: Format = CONTENT_ONLY
    """How the model writes calls and reasoning."""
    chat: ChatParams = field(default_factory=ChatParams)
    grammars: Grammars | None = None
    """What compiles constraints; without it none are taken."""
    content: Content | None = None
    """What all texts have to match whose request says nothing else."""
    responses: Shelf | None = None
    """The kept answers of whom a request comes from; None keeps nothing. Set for each request."""

    @property
    def writer(self) -> ChatModel:
        """What makes the turns of this model."""
        return ChatModel(self.template, self.format, self.chat, self.template_kwargs)
