"""One loaded model, ready to work: the composition of native, engine and chat that server and commands share."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from minka.chat.formats.find import find_format
from minka.chat.prompt import parse_kwargs
from minka.chat.template import Apply, Template, select_template
from minka.engine.engine import Engine, EngineConfig
from minka.engine.inbox import LoopInbox
from minka.engine.memory import MemoryConfig
from minka.errors import UsageError
from minka.grammar.compiler import Grammars
from minka.hub import ModelFile, locate
from minka.native.context import DEFAULT_SLOTS, Context, TextlessError
from minka.native.context_params import thread_counts
from minka.native.embedder import Embedder, choose_pooling, rank_frame
from minka.native.library import library
from minka.native.machine import total_memory
from minka.native.model import Model
from minka.native.placement import prepare
from minka.native.textless import Textless
from minka.native.threadpool import Threadpools, pinnings
from minka.params import (
    CacheParams,
    ChatParams,
    ContextParams,
    EmbeddingParams,
    GenerationParams,
    HardwareParams,
    LoraParams,
    ModelParams,
    SamplingParams,
)
from minka.protocols.constraint import Content, default_content
from minka.protocols.lora import LoraFiles
from minka.protocols.served import EmbeddingFacts, ModelFacts, Served
from minka.version import VERSION

log = logging.getLogger("minka.model")

BUILD = f"b0-minka-{VERSION}"
"""What clients see as `system_fingerprint` and `build_info`; llama.cpp's clients expect it to start with b."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that decides how a model is loaded and used. Without `embedding` nothing is embedded, and a model that can do
    nothing else is refused."""

    model: ModelParams
    context: ContextParams
    sampling: SamplingParams
    generation: GenerationParams
    chat: ChatParams
    engine: EngineConfig
    lora: LoraParams = field(default_factory=LoraParams)
    embedding: EmbeddingParams | None = None
    hardware: HardwareParams = field(default_factory=HardwareParams)


def engine_config(cache: CacheParams, generation: GenerationParams, queue_size: int) -> EngineConfig:
    """What the parameters mean for the engine; `queue_size` is how many jobs may wait for a slot."""
    return EngineConfig(
        queue_size=queue_size,
        max_gap_ms=cache.max_gap_ms,
        memory=MemoryConfig(
            limit=_cache_bytes(cache.cache_ram),
            step=cache.checkpoint_min_step,
            n_snapshots=cache.ctx_checkpoints,
            clear_idle=cache.cache_idle_slots,
        ),
        disk=Path(cache.cache_disk).expanduser() if cache.cache_disk else None,
        disk_limit=cache.cache_disk_size << 20,
        shifts=cache.context_shift,
        reuses=generation.n_cache_reuse > 0,
        deterministic=cache.deterministic,
    )


def _cache_bytes(mebibytes: int) -> int:
    """What --cache-ram means here: never more than a quarter of the machine's memory unless there is no limit."""
    if mebibytes < 0:
        return sys.maxsize
    total = total_memory()
    return min(mebibytes << 20, total // 4) if total is not None else mebibytes << 20


class Runtime:
    """A model with its engine. `inbox` belongs to the asyncio loop that first asks for it.

    `served` is replaced by a new value when adapters come, go or change; only that loop does so. `lora_files` are the
    adapters that may be loaded while it runs.
    """

    def __init__(
        self,
        model: Model,
        engine: Engine,
        served: Served,
        lora_files: LoraFiles | None = None,
        threadpools: Threadpools | None = None,
    ) -> None:
        self._model = model
        self._threadpools = threadpools
        self.engine = engine
        self.served = served
        self.lora_files = lora_files or LoraFiles()

    @cached_property
    def inbox(self) -> LoopInbox:
        """Where the events of the running loop's jobs arrive."""
        return LoopInbox(asyncio.get_running_loop())

    @property
    def model(self) -> Model:
        """The model, for what is done beside the engine while that has no job."""
        return self._model

    def close(self) -> None:
        """End all jobs and free the model."""
        self.engine.close()
        if self.served.grammars is not None:
            self.served.grammars.close()
        if self._threadpools is not None:
            self._threadpools.close()
        self._model.close()


def load(settings: Settings, progress: Callable[[float], None] | None = None) -> Runtime:
    """Find the model, load it and start its engine. Blocks. Raises ModelError with a sentence that says what is wrong.

    `progress` is called with 0..1 while the weights are read.
    """
    lora_files, pinned, placement = _lora_files(settings.lora), pinnings(settings.hardware), prepare(settings.hardware)
    file = locate(settings.model)
    if settings.model.n_gpu_layers > 0 and not library().supports_gpu:
        log.warning("--gpu-layers has no effect: libllama was compiled for the CPU only; the README says how for a GPU")
    with ExitStack() as undone:
        model = Model.load(file.path, settings.model, progress, placement)
        undone.callback(model.close)
        _load_adapters(model, settings.lora)
        template = _template(model, settings.chat)
        threadpools = Threadpools(*pinned, *thread_counts(settings.context))
        undone.callback(threadpools.close)
        context = _context(model, settings, threadpools)
        embedder = _embedder(model, settings, threadpools, generates=isinstance(context, Context))
        served = _served(file, model, context, template, settings, embedder)
        engine = _start(context, embedder, settings, served.grammars)
        undone.pop_all()
    return Runtime(model, engine, served, lora_files, threadpools)


def _load_adapters(model: Model, params: LoraParams) -> None:
    for name, scale in params.files:
        model.adapters.load(Path(name).expanduser(), 0.0 if params.init_without_apply else scale)


def _lora_files(params: LoraParams) -> LoraFiles:
    """What the command line lets clients load. Raises UsageError for a directory that is none."""
    directory = Path(params.directory).expanduser() if params.directory else None
    if directory is not None and not directory.is_dir():
        raise UsageError(f"--lora-dir {params.directory} is no directory")
    return LoraFiles(tuple(Path(name).expanduser() for name, _ in params.files), directory)


def _context(model: Model, settings: Settings, threadpools: Threadpools) -> Context | Textless:
    """What generates text, or what stands there for a model that cannot."""
    try:
        return Context(model, settings.context, threadpools)
    except TextlessError:
        if settings.embedding is None:
            raise
    n_slots = settings.context.parallel if settings.context.parallel > 0 else DEFAULT_SLOTS
    limits = (model.n_ctx_train, settings.context.n_ctx)
    return Textless(model.vocab, n_seq_max=n_slots, n_ctx=min(limit for limit in limits if limit > 0))


def _embedder(model: Model, settings: Settings, threadpools: Threadpools, *, generates: bool) -> Embedder | None:
    params = settings.embedding
    if params is None:
        return None
    wanted = "rank" if params.rerank else params.pooling
    pooling = choose_pooling(model, wanted)
    return Embedder(model, settings.context, pooling, generates=generates, threadpools=threadpools)


def _embedding_facts(
    model: Model, settings: Settings, embedder: Embedder | None, *, only: bool
) -> EmbeddingFacts | None:
    if embedder is None or settings.embedding is None:
        return None
    return EmbeddingFacts(
        pooling=embedder.pooling,
        width=embedder.width,
        normalize=settings.embedding.embd_normalize,
        frame=rank_frame(model),
        only=only,
    )


def _start(
    context: Context | Textless, embedder: Embedder | None, settings: Settings, grammars: Grammars | None
) -> Engine:
    config, params = settings.engine, settings.embedding
    if isinstance(context, Textless):  # it has no text to keep, to shift or to move
        config = EngineConfig(queue_size=config.queue_size, max_gap_ms=config.max_gap_ms, embeds=True)
    elif params is not None:
        config = replace(config, embeds=params.embeddings or params.rerank)
    try:
        return Engine(context, config, embedder=embedder, constraints=grammars)
    except BaseException:
        context.close()
        raise


def _template(model: Model, params: ChatParams) -> Template:
    override = params.chat_template
    if params.chat_template_file:
        override = _text_of(params.chat_template_file, "--chat-template-file")
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


def _served(
    file: ModelFile,
    model: Model,
    context: Context | Textless,
    template: Template,
    settings: Settings,
    embedder: Embedder | None,
) -> Served:
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
        format=find_format(template),
        chat=settings.chat,
        n_batch=context.n_batch,
        fim=model.vocab.fim,
        adapters=model.adapters.all,
        embeddings=_embedding_facts(model, settings, embedder, only=isinstance(context, Textless)),
        grammars=Grammars(model.vocab),
        content=_content(settings.generation),
    )


def _content(params: GenerationParams) -> Content | None:
    """What the command line wants all texts to match. Raises UsageError for files that cannot be read."""
    grammar, schema = params.grammar, params.json_schema
    if params.grammar_file:
        grammar = _text_of(params.grammar_file, "--grammar-file")
    if params.json_schema_file:
        schema = _text_of(params.json_schema_file, "--json-schema-file")
    return default_content(grammar, schema)


def _text_of(path: str, flag: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {flag} {path}: {getattr(error, 'strerror', None) or error}") from None


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
