"""One loaded model, ready to work: the composition of native, engine and chat that server and commands share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from minka import __version__
from minka.chat.prompt import parse_kwargs
from minka.chat.template import Apply, Template, select_template
from minka.engine.engine import Engine, EngineConfig
from minka.engine.inbox import LoopInbox
from minka.errors import UsageError
from minka.hub import ModelFile, locate
from minka.native.context import Context
from minka.native.model import Model
from minka.params import ChatParams, ContextParams, GenerationParams, ModelParams, SamplingParams
from minka.protocols.served import ModelFacts, Served

BUILD = f"b0-minka-{__version__}"
"""What clients see as `system_fingerprint` and `build_info`; llama.cpp's clients expect it to start with b."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that decides how a model is loaded and used."""

    model: ModelParams
    context: ContextParams
    sampling: SamplingParams
    generation: GenerationParams
    chat: ChatParams
    engine: EngineConfig


class Runtime:
    """A model with its engine. `inbox` belongs to the asyncio loop that first asks for it."""

    def __init__(self, model: Model, engine: Engine, served: Served) -> None:
        self._model = model
        self.engine = engine
        self.served = served

    @cached_property
    def inbox(self) -> LoopInbox:
        """Where the events of the running loop's jobs arrive."""
        return LoopInbox(asyncio.get_running_loop())

    def close(self) -> None:
        """End all jobs and free the model."""
        self.engine.close()
        self._model.close()


def load(settings: Settings, progress: Callable[[float], None] | None = None) -> Runtime:
    """Find the model, load it and start its engine. Blocks. Raises ModelError with a sentence that says what is wrong.

    `progress` is called with 0..1 while the weights are read.
    """
    file = locate(settings.model)
    model = Model.load(file.path, settings.model, progress)
    try:
        template = _template(model, settings.chat)
        context = Context(model, settings.context)
        served = _served(file, model, context, template, settings)
        engine = _start(context, settings.engine)
    except BaseException:
        model.close()
        raise
    return Runtime(model, engine, served)


def _start(context: Context, config: EngineConfig) -> Engine:
    try:
        return Engine(context, config)
    except BaseException:
        context.close()
        raise


def _template(model: Model, params: ChatParams) -> Template:
    override = params.chat_template
    if params.chat_template_file:
        try:
            override = Path(params.chat_template_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the chat template {params.chat_template_file}: {error}") from None
    vocab = model.vocab
    template = select_template(
        model.chat_template(),
        model.chat_template("tool_use"),
        override,
        bos_token=vocab.text(vocab.bos),
        eos_token=vocab.text(vocab.eos),
        add_bos=vocab.add_bos,
        add_eos=vocab.add_eos,
        legacy=None if params.jinja else _legacy(model),
    )
    template.check()
    return template


def _legacy(model: Model) -> Apply:
    def apply(template: str, messages: Sequence[tuple[str, str]], add_assistant: bool) -> str:
        text = model.apply_legacy_template(template, list(messages), add_assistant)
        if text is None:
            raise ValueError(template)
        return text

    return apply


def _served(file: ModelFile, model: Model, context: Context, template: Template, settings: Settings) -> Served:
    facts = ModelFacts(
        path=str(file.path),
        name=file.name,
        aliases=settings.model.alias,
        tags=settings.model.tags,
        description=model.description,
        ftype=model.ftype,
        vocab_type=model.vocab.type,
        n_ctx_train=model.n_ctx_train,
        n_embd=model.n_embd,
        n_params=model.n_params,
        size=model.size,
    )
    return Served(
        model=facts,
        tokenizer=model.vocab,
        template=template,
        n_ctx=context.n_ctx_seq,
        n_slots=context.n_seq_max,
        max_jobs=context.n_seq_max + settings.engine.queue_size,
        created=int(time.time()),
        build=BUILD,
        sampling=_from_model(model, settings.sampling),
        generation=settings.generation,
        prefill_assistant=settings.chat.prefill_assistant,
        template_kwargs=parse_kwargs(settings.chat.chat_template_kwargs),
    )


# Sampling defaults that a model's author can put into the file, by our names (general.sampling.* of GGUF).
_MODEL_SAMPLING: dict[str, tuple[str, Callable[[str], object]]] = {
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "temp": ("temperature", float),
    "penalty_last_n": ("repeat_last_n", int),
    "penalty_repeat": ("repeat_penalty", float),
    "mirostat": ("mirostat", int),
    "mirostat_tau": ("mirostat_tau", float),
    "mirostat_eta": ("mirostat_eta", float),
}


def _from_model(model: Model, params: SamplingParams) -> SamplingParams:
    """The user's defaults, and for what the user did not set, the model's."""
    standard = SamplingParams()
    found: dict[str, object] = {}
    for key, (name, read) in _MODEL_SAMPLING.items():
        text = model.meta(f"general.sampling.{key}")
        if text is not None and getattr(params, name) == getattr(standard, name):
            found[name] = read(text)
    return replace(params, **found)  # type: ignore[arg-type]
