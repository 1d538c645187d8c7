"""The parameter table: one row gives a parameter's flags, env name, request fields, range, default and doc line.

A row is a field of a frozen dataclass made with `param`, so the values have real static types. Spellings and defaults
follow llama-server (llama.cpp, common/arg.cpp and tools/server). This module knows no argparse, no HTTP and no model.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import inf
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from minka.errors import RequestError, UnsupportedError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    D = TypeVar("D", bound=DataclassInstance)
else:
    D = TypeVar("D")
T = TypeVar("T")

INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
MAX_SLOTS = 256
"""The most sequences a libllama context holds (LLAMA_MAX_SEQ)."""
MAX_WINDOW = 2**20
"""The longest history a sampler may look back on, in tokens: libllama allocates it when the sampler is made."""
HUGE = 1e6
"""Bound of the numbers that llama-server takes unchecked: far over any use, and their products fit a float32."""
Adapters = tuple[tuple[int, float], ...]
"""LoRA adapters by their ids, each with the factor of its weights; never 0, in the order of the ids."""


class Kind(StrEnum):
    """What a value is, as the documentation says it."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STR = "string"
    STRS = "strings"
    FLOATS = "numbers"
    BIASES = "token biases"
    INTS = "integers"
    FILES = "files with factors"
    ADAPTERS = "adapters with factors"


_KINDS = {
    "bool": Kind.BOOL,
    "bool | None": Kind.BOOL,
    "int": Kind.INT,
    "int | None": Kind.INT,
    "float": Kind.FLOAT,
    "str": Kind.STR,
    "str | None": Kind.STR,
    "tuple[str, ...]": Kind.STRS,
    "tuple[float, ...]": Kind.FLOATS,
    "tuple[tuple[int, float], ...]": Kind.BIASES,
    "tuple[int, ...]": Kind.INTS,
    "tuple[tuple[str, float], ...]": Kind.FILES,
    "Adapters | None": Kind.ADAPTERS,
}


class Syntax(StrEnum):
    """How the text of a flag or an env variable becomes a value, where the type alone does not say it."""

    PLAIN = "plain"
    CSV = "comma-separated"
    ONE = "one item per use"
    SAMPLERS = "names separated by ;"
    SAMPLER_CHARS = "one letter per sampler"
    BIAS = "ID+BIAS or ID-BIAS"
    SCALED = "FILE:SCALE separated by commas"
    INVERSE = "1/value"
    SWITCH = "on, off or auto"
    JSON_OBJECT = "a JSON object"


@dataclass(frozen=True, slots=True)
class Also:
    """A second way to set the same parameter, with its own syntax: `--rope-scale N` is `--rope-freq-scale 1/N`."""

    flags: tuple[str, ...]
    syntax: Syntax
    doc: str
    env: str | None = None
    metavar: str = "N"


@dataclass(frozen=True, slots=True)
class Param:
    """All about a parameter but its name, its type and its default, which are the dataclass field's.

    `flags` and `negated` are command-line spellings, `negated` the ones that switch a bool off. `http` are the names of
    the request field, the first one that is present wins. `low..high` is the range, ends included: a value outside is
    refused, or limited if `clamp`, or replaced by the default if it is under `low` and `reset`. `besides` are allowed
    values outside the range. `named` are words for numbers. `max_items` and `min_items` bound a list, `none` is the
    word for the empty one, `lone` lets a request give a string for a list of one, `skip_empty` drops empty strings and
    treats a list with nothing left as absent. `repeat`: each use of the flag adds. `escapes`: \\n and the like are
    processed. `n_values` is how many words the flag takes (not of a bool). `own`: Minka's, not llama-server's. `inert`:
    accepted and without effect.
    """

    doc: str
    flags: tuple[str, ...] = ()
    negated: tuple[str, ...] = ()
    env: str | None = None
    http: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    clamp: bool = False
    reset: bool = False
    besides: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    named: tuple[tuple[str, int], ...] = ()
    min_items: int = 0
    max_items: int = 1024
    none: str | None = None
    lone: bool = False
    skip_empty: bool = False
    repeat: bool = False
    escapes: bool = False
    syntax: Syntax = Syntax.PLAIN
    metavar: str = ""
    n_values: int = 1
    topic: str = ""
    also: tuple[Also, ...] = ()
    own: bool = False
    inert: bool = False


def param(
    default: T,
    *flags: str,
    doc: str,
    negated: tuple[str, ...] = (),
    env: str | None = None,
    http: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    clamp: bool = False,
    reset: bool = False,
    besides: tuple[int, ...] = (),
    choices: tuple[str, ...] = (),
    named: tuple[tuple[str, int], ...] = (),
    min_items: int = 0,
    max_items: int = 1024,
    none: str | None = None,
    lone: bool = False,
    skip_empty: bool = False,
    repeat: bool = False,
    escapes: bool = False,
    syntax: Syntax = Syntax.PLAIN,
    metavar: str = "",
    n_values: int = 1,
    topic: str = "",
    also: tuple[Also, ...] = (),
    own: bool = False,
    inert: bool = False,
    secret: bool = False,
) -> T:
    """A row of the table: a dataclass field with its `Param`. See there; a `secret` is left out of the repr."""
    row = Param(
        doc=doc,
        flags=flags,
        negated=negated,
        env=env,
        http=http,
        low=low,
        high=high,
        clamp=clamp,
        reset=reset,
        besides=besides,
        choices=choices,
        named=named,
        min_items=min_items,
        max_items=max_items,
        none=none,
        lone=lone,
        skip_empty=skip_empty,
        repeat=repeat,
        escapes=escapes,
        syntax=syntax,
        metavar=metavar,
        n_values=n_values,
        topic=topic,
        also=also,
        own=own,
        inert=inert,
    )
    return dataclasses.field(default=default, repr=not secret, metadata={"param": row})


SAMPLERS: Mapping[str, str] = MappingProxyType(
    {
        "penalties": "e",
        "dry": "d",
        "top_n_sigma": "s",
        "top_k": "k",
        "typ_p": "y",
        "top_p": "p",
        "min_p": "m",
        "xtc": "x",
        "temperature": "t",
        "infill": "i",
        "adaptive_p": "a",
    }
)
"""Every sampler's name and its letter in `--sampler-seq`."""

DEFAULT_SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")


# The rows are set by hand, two or three lines each, to be read as a table.
# fmt: off
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. All of it is a default of the server and can be set per request."""

    seed: int = param(
        -1, "-s", "--seed", http=("seed",), low=-1, high=UINT32_MAX,
        doc="seed of the random choice, -1 for a random one")
    samplers: tuple[str, ...] = param(
        DEFAULT_SAMPLERS, "--samplers", http=("samplers",), choices=tuple(SAMPLERS), syntax=Syntax.SAMPLERS,
        max_items=32, metavar="SAMPLERS",
        also=(Also(
            ("--sampler-seq", "--sampling-seq"), Syntax.SAMPLER_CHARS,
            "the samplers as letters, in order: " + " ".join(f"{c}={n}" for n, c in SAMPLERS.items()),
            metavar="SEQUENCE"),),
        doc="samplers in the order they are applied; an empty list truncates nothing")
    temperature: float = param(
        0.8, "--temp", "--temperature", env="LLAMA_ARG_TEMPERATURE", http=("temperature",), low=0.0, high=HUGE,
        clamp=True,
        doc="temperature; 0 always takes the most likely token")
    dynatemp_range: float = param(
        0.0, "--dynatemp-range", http=("dynatemp_range",), low=0.0, high=HUGE, clamp=True,
        doc="the temperature moves within temperature ± range by the entropy; 0 is off")
    dynatemp_exponent: float = param(
        1.0, "--dynatemp-exp", http=("dynatemp_exponent",), low=0.0, high=HUGE,
        doc="how entropy maps to the dynamic temperature")
    top_k: int = param(
        40, "--top-k", env="LLAMA_ARG_TOP_K", http=("top_k",), low=0, high=INT32_MAX, clamp=True,
        doc="keep the k most likely tokens; 0 is off")
    top_p: float = param(
        0.95, "--top-p", env="LLAMA_ARG_TOP_P", http=("top_p",), low=0.0, high=1.0, clamp=True,
        doc="keep the most likely tokens whose probabilities sum to p; 1 is off")
    min_p: float = param(
        0.05, "--min-p", env="LLAMA_ARG_MIN_P", http=("min_p",), low=0.0, high=1.0, clamp=True,
        doc="drop tokens less likely than p times the most likely one; 0 is off")
    top_n_sigma: float = param(
        -1.0, "--top-nsigma", "--top-n-sigma", http=("top_n_sigma",), low=-1.0, high=HUGE, clamp=True,
        doc="keep tokens whose logit is within n standard deviations of the best; negative is off")
    typical_p: float = param(
        1.0, "--typical", "--typical-p", http=("typical_p",), low=0.0, high=1.0, clamp=True,
        doc="locally typical sampling; 1 is off")
    xtc_probability: float = param(
        0.0, "--xtc-probability", http=("xtc_probability",), low=0.0, high=1.0, clamp=True,
        doc="chance that XTC removes the top choices of a token; 0 is off")
    xtc_threshold: float = param(
        0.1, "--xtc-threshold", http=("xtc_threshold",), low=0.0, high=1.0, clamp=True,
        doc="the probability over which XTC calls a token a top choice; over 0.5 is off")
    repeat_last_n: int = param(
        64, "--repeat-last-n", http=("repeat_last_n",), low=0, high=MAX_WINDOW,
        doc="how many of the last tokens the penalties look at; 0 is off")
    repeat_penalty: float = param(
        1.0, "--repeat-penalty", env="LLAMA_ARG_REPEAT_PENALTY", http=("repeat_penalty",), low=1e-6, high=HUGE,
        doc="penalty on tokens that were used; 1 is off")
    presence_penalty: float = param(
        0.0, "--presence-penalty", env="LLAMA_ARG_PRESENCE_PENALTY", http=("presence_penalty",), low=-HUGE, high=HUGE,
        doc="taken off the logit of every token that was used; 0 is off")
    frequency_penalty: float = param(
        0.0, "--frequency-penalty", env="LLAMA_ARG_FREQUENCY_PENALTY", http=("frequency_penalty",), low=-HUGE,
        high=HUGE,
        doc="taken off the logit of a token for each time it was used; 0 is off")
    dry_multiplier: float = param(
        0.0, "--dry-multiplier", http=("dry_multiplier",), low=0.0, high=HUGE,
        doc="strength of the DRY penalty on repeated sequences; 0 is off")
    dry_base: float = param(
        1.75, "--dry-base", http=("dry_base",), low=1.0, high=HUGE, reset=True,
        doc="base of the DRY penalty, which grows by the repetition's length; under 1 means the default")
    dry_allowed_length: int = param(
        2, "--dry-allowed-length", http=("dry_allowed_length",), low=0, high=MAX_WINDOW,
        doc="repetitions up to this length, in tokens, have no DRY penalty")
    dry_penalty_last_n: int = param(
        64, "--dry-penalty-last-n", http=("dry_penalty_last_n",), low=0, high=MAX_WINDOW,
        doc="how many of the last tokens DRY looks at; 0 is off")
    dry_sequence_breakers: tuple[str, ...] = param(
        ("\n", ":", '"', "*"), "--dry-sequence-breaker", http=("dry_sequence_breakers",), syntax=Syntax.ONE,
        repeat=True, escapes=True, none="none", min_items=1, max_items=256, metavar="STRING",
        doc="a string that ends a sequence for DRY; the first use replaces the defaults, none is for none at all")
    mirostat: int = param(
        0, "--mirostat", http=("mirostat",), low=0, high=2, clamp=True,
        doc="Mirostat version in place of the samplers, 1 or 2; 0 is off")
    mirostat_tau: float = param(
        5.0, "--mirostat-ent", http=("mirostat_tau",), low=0.0, high=HUGE, doc="Mirostat's target entropy")
    mirostat_eta: float = param(
        0.1, "--mirostat-lr", http=("mirostat_eta",), low=0.0, high=HUGE, doc="Mirostat's learning rate")
    adaptive_target: float = param(
        -1.0, "--adaptive-target", http=("adaptive_target",), low=-1.0, high=1.0, clamp=True,
        doc="the probability that adaptive_p steers to, if it is one of the samplers; negative is off")
    adaptive_decay: float = param(
        0.9, "--adaptive-decay", http=("adaptive_decay",), low=0.0, high=0.99,
        doc="how slowly adaptive_p forgets: higher is more stable")
    min_keep: int = param(
        0, http=("min_keep",), low=0, high=INT32_MAX, doc="the least tokens that a truncating sampler leaves")
    logit_bias: tuple[tuple[int, float], ...] = param(
        (), "-l", "--logit-bias", http=("logit_bias",), syntax=Syntax.BIAS, repeat=True, low=-HUGE, high=HUGE,
        metavar="TOKEN_ID(+/-)BIAS",
        doc="added to a token's logit, as in 15043+1; -inf (in a request: false) bans the token")
    ignore_eos: bool = param(
        False, "--ignore-eos", http=("ignore_eos",), doc="never end the text at an end-of-generation token")
    n_probs: int = param(
        0, http=("n_probs",), low=0, high=INT32_MAX, clamp=True,
        doc="report the probabilities of this many of the most likely tokens; 0 is off")
    post_sampling_probs: bool = param(
        False, http=("post_sampling_probs",),
        doc="report probabilities after the samplers, not of the whole vocabulary")
    backend_sampling: bool = param(
        False, "-bs", "--backend-sampling", env="LLAMA_ARG_BACKEND_SAMPLING", http=("backend_sampling",), inert=True,
        doc="accepted without effect: the samplers always run on the CPU, and choose the same tokens")


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """What is generated, when it ends and how it is sent: request fields, with the server's defaults."""

    n_predict: int = param(
        -1, "-n", "--predict", "--n-predict", env="LLAMA_ARG_N_PREDICT",
        http=("n_predict", "max_completion_tokens", "max_tokens"), low=-1, high=INT32_MAX,
        doc="the most tokens to generate, -1 for as many as the context holds")
    n_keep: int = param(
        0, "--keep", http=("n_keep",), low=-1, high=INT32_MAX,
        doc="prompt tokens that stay when the context is shifted, -1 for all")
    n_discard: int = param(
        0, http=("n_discard",), low=0, high=INT32_MAX, doc="tokens dropped when the context is shifted, 0 for half")
    n_cache_reuse: int = param(
        0, "--cache-reuse", env="LLAMA_ARG_CACHE_REUSE", http=("n_cache_reuse",), low=0, high=INT32_MAX,
        doc="take over runs of at least so many tokens that a slot's text and the prompt have in different places; "
        "approximate; 0 is off")
    grammar: str = param(
        "", "--grammar", metavar="GRAMMAR",
        doc="a grammar in llama.cpp's language (GBNF) that all texts have to match, unless a request says another")
    grammar_file: str | None = param(
        None, "--grammar-file", metavar="FILE", doc="a file with such a grammar")
    json_schema: str = param(
        "", "-j", "--json-schema", metavar="SCHEMA",
        doc="a JSON schema that all texts have to match, unless a request says another; {} for any object")
    json_schema_file: str | None = param(
        None, "-jf", "--json-schema-file", metavar="FILE", doc="a file with such a schema")
    n_indent: int = param(
        0, http=("n_indent",), low=0, high=INT32_MAX, doc="end at a new line that is indented less than this; 0 is off")
    close_at_limit: bool = param(
        False, "--close-at-limit", negated=("--no-close-at-limit",), env="MINKA_CLOSE_AT_LIMIT",
        http=("close_at_limit",), own=True,
        doc="when the limit or the context is nearly reached, close what is open of JSON, so that it can be read; the "
        "finish reason stays the limit")
    lora: Adapters | None = param(  # noqa: RUF009 (a tuple, which ruff does not see)
        None, http=("lora",), low=-HUGE, high=HUGE, max_items=256,
        doc="LoRA adapters with their factors, as in [{\"id\": 0, \"scale\": 0.5}]; those that are left out are off, "
        "and without the field the server's are used")
    spm_infill: bool = param(
        False, "--spm-infill", doc="put the suffix before the prefix in prompts of /infill, as some models want it")
    t_max_predict_ms: int = param(
        -1, http=("t_max_predict_ms",), low=-1, high=2**53 - 1,
        doc="end after so many milliseconds of generation, once a line is complete; -1 is off")
    stop: tuple[str, ...] = param(
        (), "-r", "--reverse-prompt", http=("stop",), syntax=Syntax.ONE, repeat=True, escapes=True, lone=True,
        skip_empty=True, metavar="STRING",
        doc="a string that ends the text and is not part of it")
    escape: bool = param(
        True, "-e", "--escape", negated=("--no-escape",),
        doc="process \\n, \\t and the like in the strings of the command line")
    cache_prompt: bool = param(
        True, "--cache-prompt", negated=("--no-cache-prompt",), env="LLAMA_ARG_CACHE_PROMPT", http=("cache_prompt",),
        doc="take over what is already computed of a prompt")
    cache_salt: str = param(
        "", http=("cache_salt",), own=True,
        doc="computed text is shared only between requests with the same salt")
    id_slot: int = param(
        -1, http=("id_slot",), low=-1, high=MAX_SLOTS - 1, doc="the slot that must serve the request, -1 for any")
    n_cmpl: int = param(1, http=("n_cmpl", "n"), low=1, high=MAX_SLOTS, doc="how many completions of the prompt")
    stream: bool = param(False, http=("stream",), doc="send the text while it is generated")
    timings_per_token: bool = param(False, http=("timings_per_token",), doc="send timings with every token")
    return_tokens: bool = param(False, http=("return_tokens",), doc="send token ids as well")
    return_progress: bool = param(False, http=("return_progress",), doc="send events while the prompt is computed")
    sse_ping_interval: int = param(
        15, "--sse-ping-interval", env="LLAMA_ARG_SSE_PING_INTERVAL", http=("sse_ping_interval",), low=-1,
        high=INT32_MAX,
        doc="seconds of silence in a stream after which a comment is sent; -1 or 0 is off (llama-server: 30)")
    timeout_ms: int = param(
        -1, http=("timeout_ms",), low=-1, high=2**31 - 1, own=True,
        doc="milliseconds after which a request that waits fails (504), and one that generates ends with what it has; "
        "-1 is off")
    priority: int = param(
        0, http=("priority",), low=-1, high=1, own=True, doc="place in the queue: 1 before 0 before -1")
    response_fields: tuple[str, ...] = param(
        (), http=("response_fields",), max_items=256, doc="the only fields of the answer to send, as in a/b")
    verbose: bool = param(False, http=("verbose",), doc="add the native answer to an OpenAI one, as __verbose")


LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")


@dataclass(frozen=True, slots=True)
class ModelParams:
    """Which model, where it comes from, and on which devices its weights are."""

    model: str | None = param(
        None, "-m", "--model", env="LLAMA_ARG_MODEL", metavar="FILE", doc="the GGUF file (of a split model: the first)")
    hf_repo: str | None = param(
        None, "-hf", "-hfr", "--hf-repo", env="LLAMA_ARG_HF_REPO", metavar="USER/MODEL[:QUANT]",
        doc="Hugging Face repository; QUANT is Q4_K_M if not given, else the first file")
    hf_file: str | None = param(
        None, "-hff", "--hf-file", env="LLAMA_ARG_HF_FILE", metavar="FILE", doc="the file in the repository")
    hf_token: str | None = param(
        None, "-hft", "--hf-token", env="HF_TOKEN", metavar="TOKEN", secret=True, doc="Hugging Face access token")
    offline: bool = param(False, "--offline", env="LLAMA_ARG_OFFLINE", doc="never use the network, only the cache")
    alias: tuple[str, ...] = param(
        (), "-a", "--alias", env="LLAMA_ARG_ALIAS", syntax=Syntax.CSV, repeat=True, metavar="NAMES",
        doc="names of the model in the API")
    tags: tuple[str, ...] = param(
        (), "--tags", env="LLAMA_ARG_TAGS", syntax=Syntax.CSV, repeat=True, metavar="TAGS",
        doc="tags of the model in the API, for information only")
    load_mode: str = param(
        "auto", "-lm", "--load-mode", env="LLAMA_ARG_LOAD_MODE", choices=LOAD_MODES, metavar="MODE",
        doc="how the weights get into memory")
    check_tensors: bool = param(False, "--check-tensors", doc="look for invalid numbers in the weights")
    n_gpu_layers: int = param(
        -1, "-ngl", "--gpu-layers", "--n-gpu-layers", env="LLAMA_ARG_N_GPU_LAYERS", low=0, high=INT32_MAX,
        besides=(-1, -2), named=(("auto", -1), ("all", -2)),
        doc="layers on the GPU: a number, auto or all")
    split_mode: str = param(
        "layer", "-sm", "--split-mode", env="LLAMA_ARG_SPLIT_MODE", choices=("none", "layer", "row", "tensor"),
        metavar="MODE",
        doc="how several GPUs share the model")
    tensor_split: tuple[float, ...] = param(
        (), "-ts", "--tensor-split", env="LLAMA_ARG_TENSOR_SPLIT", syntax=Syntax.CSV, low=0.0, high=HUGE, max_items=16,
        metavar="N0,N1,...",
        doc="each GPU's share of the model, as proportions")
    main_gpu: int = param(
        0, "-mg", "--main-gpu", env="LLAMA_ARG_MAIN_GPU", low=0, high=255, metavar="INDEX",
        doc="the GPU for everything (split mode none) or for intermediate results (row)")
    repack: bool = param(
        True, "--repack", negated=("-nr", "--no-repack"), env="LLAMA_ARG_REPACK",
        doc="rearrange weights for faster kernels")
    no_host: bool = param(
        False, "--no-host", env="LLAMA_ARG_NO_HOST", doc="leave out the host buffer, so that extra buffers can be used")
    op_offload: bool = param(
        True, "--op-offload", negated=("--no-op-offload",),
        doc="let the GPU compute large operations on weights that are in host memory")


LAZY_MODES = ("on", "auto", "off")
NUMA_MODES = ("distribute", "isolate", "numactl")
_THREADS = "Placement of threads"


@dataclass(frozen=True, slots=True)
class HardwareParams:
    """Which devices and processors compute, beyond how many: devices by name, tensors by name, threads by processor."""

    device: tuple[str, ...] = param(
        (), "-dev", "--device", env="LLAMA_ARG_DEVICE", syntax=Syntax.CSV, max_items=16, metavar="DEV1,DEV2,...",
        doc="devices for the weights, as --list-devices names them; none is only the CPU; if not given, all that fit")
    override_tensor: tuple[str, ...] = param(
        (), "-ot", "--override-tensor", env="LLAMA_ARG_OVERRIDE_TENSOR", syntax=Syntax.CSV, repeat=True, max_items=4096,
        metavar="PATTERN=TYPE,...",
        doc="put the tensors in whose name a regular expression is found into a buffer type, as in exps=CPU; the first "
        "that fits counts")
    cpu_moe: bool = param(
        False, "-cmoe", "--cpu-moe", env="LLAMA_ARG_CPU_MOE", doc="keep the experts of all layers on the CPU")
    n_cpu_moe: int = param(
        0, "-ncmoe", "--n-cpu-moe", env="LLAMA_ARG_N_CPU_MOE", low=0, high=4096,
        doc="keep the experts of the first N layers on the CPU")
    n_cpu_ffn: int = param(
        0, "-ncffn", "--n-cpu-ffn", env="LLAMA_ARG_N_CPU_FFN", low=0, high=4096,
        doc="keep the dense feed-forward weights of the first N layers on the CPU")
    lazy_mode: str = param(
        "auto", "-lzm", "--lazy-mode", env="LLAMA_ARG_LAZY_MODE", choices=LAZY_MODES, metavar="MODE",
        doc="read rows of tensors that are marked for it when they are needed")
    override_kv: tuple[str, ...] = param(
        (), "--override-kv", syntax=Syntax.CSV, repeat=True, metavar="KEY=TYPE:VALUE,...",
        doc="change metadata of the model; TYPE is int, float, bool or str")
    numa: str | None = param(
        None, "--numa", env="LLAMA_ARG_NUMA", choices=NUMA_MODES, metavar="MODE",
        doc="how to use several NUMA nodes: spread over all, stay on that of the start, or as numactl says")
    cpu_mask: str = param(
        "", "-C", "--cpu-mask", metavar="HEX", topic=_THREADS,
        doc="processors for the threads, a hexadecimal mask such as 0xf; those of --cpu-range are added")
    cpu_range: str = param(
        "", "-Cr", "--cpu-range", metavar="LOW-HIGH", topic=_THREADS, doc="processors for the threads, as in 0-7")
    cpu_strict: int = param(
        0, "--cpu-strict", low=0, high=1, metavar="0|1", topic=_THREADS,
        doc="give each thread one processor of its own")
    prio: int = param(
        0, "--prio", low=-1, high=3, topic=_THREADS,
        doc="priority of the process and its threads: -1 low, 0 normal, 1 medium, 2 high, 3 real time")
    poll: int = param(
        50, "--poll", low=0, high=100, topic=_THREADS,
        doc="how long threads without work look out for more: 0 they sleep at once, 100 the longest")
    cpu_mask_batch: str = param(
        "", "-Cb", "--cpu-mask-batch", metavar="HEX", topic=_THREADS,
        doc="the same for the threads of prompts, which are those above if none of the flags for them is given")
    cpu_range_batch: str = param(
        "", "-Crb", "--cpu-range-batch", metavar="LOW-HIGH", topic=_THREADS, doc="the same for the threads of prompts")
    cpu_strict_batch: int | None = param(
        None, "--cpu-strict-batch", low=0, high=1, metavar="0|1", topic=_THREADS,
        doc="the same for the threads of prompts")
    prio_batch: int | None = param(
        None, "--prio-batch", low=-1, high=3, topic=_THREADS, doc="the same for the threads of prompts")
    poll_batch: int | None = param(
        None, "--poll-batch", low=0, high=100, topic=_THREADS, doc="the same for the threads of prompts")


@dataclass(frozen=True, slots=True)
class LoraParams:
    """The LoRA adapters of a server or a chat."""

    files: tuple[tuple[str, float], ...] = param(
        (), "--lora", syntax=Syntax.CSV, repeat=True, low=-HUGE, high=HUGE, metavar="FILES",
        also=(Also(("--lora-scaled",), Syntax.SCALED, "the same, each with a factor", metavar="FILE:SCALE,..."),),
        doc="LoRA adapters (GGUF) to load; their ids are 0, 1, ... in this order")
    init_without_apply: bool = param(
        False, "--lora-init-without-apply",
        doc="load the adapters with factor 0; requests or POST /lora-adapters set others")
    directory: str | None = param(
        None, "--lora-dir", env="MINKA_LORA_DIR", own=True, metavar="DIR",
        doc="a directory whose adapters may be loaded while the server runs; without it only files of --lora may")


CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_ROPE = "RoPE and YaRN"
_STEERING = "Control vectors"


@dataclass(frozen=True, slots=True)
class ContextParams:
    """The context: its size, its slots, its batches, its KV cache, its threads."""

    n_ctx: int = param(
        0, "-c", "--ctx-size", env="LLAMA_ARG_CTX_SIZE", low=0, high=INT32_MAX,
        doc="size of the context in tokens, of all slots together; 0 is what the model was trained with")
    n_batch: int = param(
        2048, "-b", "--batch-size", env="LLAMA_ARG_BATCH", low=1, high=2**20, doc="the most tokens in one batch")
    n_ubatch: int = param(
        512, "-ub", "--ubatch-size", env="LLAMA_ARG_UBATCH", low=1, high=2**20,
        doc="the most tokens computed at once; a batch is cut into these")
    parallel: int = param(
        -1, "-np", "--parallel", env="LLAMA_ARG_N_PARALLEL", low=1, high=MAX_SLOTS, besides=(-1,),
        doc="how many requests are served at a time (slots), -1 for automatic")
    kv_unified: bool | None = param(
        None, "-kvu", "--kv-unified", negated=("-no-kvu", "--no-kv-unified"), env="LLAMA_ARG_KV_UNIFIED",
        doc="one KV buffer for all slots; on exactly when the number of slots is automatic, unless given")
    kv_unified_per_slot: int = param(
        0, "--kv-unified-per-slot", env="LLAMA_ARG_KV_UNIFIED_PER_SLOT", low=0, high=INT32_MAX,
        doc="the most context of one slot of a unified buffer; without -c the buffer is slots times this; 0 is off")
    threads: int = param(
        -1, "-t", "--threads", env="LLAMA_ARG_THREADS", low=-1, high=512,
        doc="CPU threads for generation; 0 or less is automatic")
    threads_batch: int = param(
        -1, "-tb", "--threads-batch", low=-1, high=512,
        doc="CPU threads for prompts; 0 or less is the same as --threads")
    flash_attn: str = param(
        "auto", "-fa", "--flash-attn", env="LLAMA_ARG_FLASH_ATTN", choices=("on", "off", "auto"), syntax=Syntax.SWITCH,
        metavar="on|off|auto",
        doc="flash attention; auto is off on a CPU, where it is slower, and on elsewhere")
    cache_type_k: str = param(
        "f16", "-ctk", "--cache-type-k", env="LLAMA_ARG_CACHE_TYPE_K", choices=CACHE_TYPES, metavar="TYPE",
        doc="type of the keys in the KV cache")
    cache_type_v: str = param(
        "f16", "-ctv", "--cache-type-v", env="LLAMA_ARG_CACHE_TYPE_V", choices=CACHE_TYPES, metavar="TYPE",
        doc="type of the values in the KV cache")
    kv_offload: bool = param(
        True, "-kvo", "--kv-offload", negated=("-nkvo", "--no-kv-offload"), env="LLAMA_ARG_KV_OFFLOAD",
        doc="keep the KV cache on the GPU")
    swa_full: bool = param(
        False, "--swa-full", env="LLAMA_ARG_SWA_FULL", doc="full-size KV cache for layers with a sliding window")
    cont_batching: bool = param(
        True, "-cb", "--cont-batching", negated=("-nocb", "--no-cont-batching"), env="LLAMA_ARG_CONT_BATCHING",
        doc="let new prompts join a running batch")
    warmup: bool = param(
        True, "--warmup", negated=("--no-warmup",), doc="run the model once, empty, before the first request")
    rope_scaling: str | None = param(
        None, "--rope-scaling", env="LLAMA_ARG_ROPE_SCALING_TYPE", choices=("none", "linear", "yarn"), metavar="TYPE",
        topic=_ROPE,
        doc="RoPE scaling; the model's if not given")
    rope_freq_base: float = param(
        0.0, "--rope-freq-base", env="LLAMA_ARG_ROPE_FREQ_BASE", low=0.0, high=1e15, topic=_ROPE,
        doc="RoPE base frequency; 0 is the model's")
    rope_freq_scale: float = param(
        0.0, "--rope-freq-scale", env="LLAMA_ARG_ROPE_FREQ_SCALE", low=0.0, high=HUGE, topic=_ROPE,
        also=(Also(
            ("--rope-scale",), Syntax.INVERSE,
            "the factor by which the context is stretched: the RoPE frequency scale becomes 1/N",
            env="LLAMA_ARG_ROPE_SCALE"),),
        doc="RoPE frequency scale, which stretches the context by 1/N; 0 is the model's")
    yarn_orig_ctx: int = param(
        0, "--yarn-orig-ctx", env="LLAMA_ARG_YARN_ORIG_CTX", low=0, high=INT32_MAX, topic=_ROPE,
        doc="YaRN: the context that the model was trained with; 0 is the model's")
    yarn_ext_factor: float = param(
        -1.0, "--yarn-ext-factor", env="LLAMA_ARG_YARN_EXT_FACTOR", low=-1.0, high=HUGE, topic=_ROPE,
        doc="YaRN: extrapolation mix, 0 is interpolation only; negative is the model's")
    yarn_attn_factor: float = param(
        -1.0, "--yarn-attn-factor", env="LLAMA_ARG_YARN_ATTN_FACTOR", low=-1.0, high=HUGE, topic=_ROPE,
        doc="YaRN: scale of the attention; negative is the model's")
    yarn_beta_slow: float = param(
        -1.0, "--yarn-beta-slow", env="LLAMA_ARG_YARN_BETA_SLOW", low=-1.0, high=HUGE, topic=_ROPE,
        doc="YaRN: high correction dimension; negative is the model's")
    yarn_beta_fast: float = param(
        -1.0, "--yarn-beta-fast", env="LLAMA_ARG_YARN_BETA_FAST", low=-1.0, high=HUGE, topic=_ROPE,
        doc="YaRN: low correction dimension; negative is the model's")
    control_vectors: tuple[tuple[str, float], ...] = param(
        (), "--control-vector", syntax=Syntax.CSV, repeat=True, low=-HUGE, high=HUGE, metavar="FILES", topic=_STEERING,
        also=(Also(
            ("--control-vector-scaled",), Syntax.SCALED, "the same, each with a factor", metavar="FILE:SCALE,..."),),
        doc="control vectors to add to what the layers compute, which steers what the model says")
    control_vector_layers: tuple[int, ...] = param(
        (), "--control-vector-layer-range", low=-1, high=INT32_MAX, n_values=2, min_items=2, max_items=2,
        metavar="START END", topic=_STEERING,
        doc="the layers that they are added to, both ends included; 0 or less is the first or the last")
    perf: bool = param(
        False, "--perf", negated=("--no-perf",), env="LLAMA_ARG_PERF", doc="let libllama keep its own timers")


@dataclass(frozen=True, slots=True)
class CacheParams:
    """What is kept of computed prompts, and how steps are shared between requests."""

    cache_ram: int = param(
        8192, "-cram", "--cache-ram", env="LLAMA_ARG_CACHE_RAM", low=-1, high=2**31 - 1, metavar="MIB",
        doc="memory for computed text that has no place in the KV cache, at most a quarter of the machine's; -1 is no "
        "limit, 0 keeps nothing")
    cache_idle_slots: bool = param(
        True, "--cache-idle-slots", negated=("--no-cache-idle-slots",), env="LLAMA_ARG_CACHE_IDLE_SLOTS",
        doc="move the text of idle slots to that memory when a request starts")
    cache_disk: str | None = param(
        None, "--cache-disk", env="MINKA_CACHE_DISK", own=True, metavar="DIR",
        doc="a directory that keeps computed text over a restart, below the memory")
    cache_disk_size: int = param(
        16384, "--cache-disk-size", env="MINKA_CACHE_DISK_SIZE", low=1, high=2**31 - 1, own=True, metavar="MIB",
        doc="how much the directory may hold")
    ctx_checkpoints: int = param(
        32, "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", env="LLAMA_ARG_CTX_CHECKPOINTS", low=0, high=2**20,
        doc="states that are kept of a conversation if the model's memory cannot be cut (recurrent, hybrid, sliding "
        "window); 0 keeps none")
    checkpoint_min_step: int = param(
        8192, "-cms", "--checkpoint-min-step", env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", low=0, high=INT32_MAX,
        doc="tokens between two such states; 0 keeps one at the end of a prompt only")
    context_shift: bool = param(
        False, "--context-shift", negated=("--no-context-shift",), env="LLAMA_ARG_CONTEXT_SHIFT",
        doc="a text that fills the context of its slot drops its middle and goes on, without end unless -n says one")
    deterministic: bool = param(
        False, "--deterministic", env="MINKA_DETERMINISTIC", own=True,
        doc="a greedy answer is the same alone and among others: one sequence a step, a KV buffer a slot; slower")
    max_gap_ms: int = param(
        200, "--max-gap-ms", env="MINKA_MAX_GAP_MS", low=1, high=3_600_000, own=True, metavar="MS",
        doc="the longest pause of a running stream while prompts of others are computed")


_REASONING = "Reasoning"


@dataclass(frozen=True, slots=True)
class ChatParams:
    """How messages become a prompt."""

    jinja: bool = param(
        True, "--jinja", negated=("--no-jinja",), env="LLAMA_ARG_JINJA", doc="use the Jinja template of the model")
    chat_template: str | None = param(
        None, "--chat-template", env="LLAMA_ARG_CHAT_TEMPLATE", metavar="TEMPLATE",
        doc="a Jinja template, or the name of a built-in one, in place of the model's")
    chat_template_file: str | None = param(
        None, "--chat-template-file", env="LLAMA_ARG_CHAT_TEMPLATE_FILE", metavar="FILE",
        doc="a file with a Jinja template, in place of the model's")
    chat_template_kwargs: str = param(
        "{}", "--chat-template-kwargs", env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS", syntax=Syntax.JSON_OBJECT, metavar="JSON",
        doc="further variables for the template, a JSON object")
    prefill_assistant: bool = param(
        True, "--prefill-assistant", negated=("--no-prefill-assistant",), env="LLAMA_ARG_PREFILL_ASSISTANT",
        doc="continue the last message if it is the assistant's")
    reasoning: str = param(
        "auto", "-rea", "--reasoning", env="LLAMA_ARG_REASONING", choices=("on", "off", "auto"), syntax=Syntax.SWITCH,
        metavar="on|off|auto", topic=_REASONING,
        doc="whether models that can think do so; auto leaves it to the chat template")
    reasoning_format: str = param(
        "auto", "--reasoning-format", env="LLAMA_ARG_THINK", http=("reasoning_format",),
        choices=("auto", "none", "deepseek", "deepseek-legacy"), metavar="FORMAT", topic=_REASONING,
        doc="where reasoning goes: to reasoning_content (auto, deepseek), into the content (none), or to both "
        "(deepseek-legacy)")
    reasoning_effort: str = param(
        "default", "--reasoning-effort", env="LLAMA_ARG_REASONING_EFFORT", http=("reasoning_effort",),
        metavar="LEVEL", topic=_REASONING,
        doc="how much to think, a word that the chat template knows; none for not at all")
    reasoning_budget: int = param(
        -1, "--reasoning-budget", env="LLAMA_ARG_THINK_BUDGET",
        http=("reasoning_budget_tokens", "thinking_budget_tokens"), low=-1, high=INT32_MAX, topic=_REASONING,
        doc="the most tokens of reasoning, which is ended then; -1 for any number")
    reasoning_budget_message: str = param(
        "", "--reasoning-budget-message", env="LLAMA_ARG_THINK_BUDGET_MESSAGE", http=("reasoning_budget_message",),
        metavar="TEXT", topic=_REASONING,
        doc="what is written before reasoning is ended for its length")
    reasoning_preserve: bool = param(
        True, "--reasoning-preserve", negated=("--no-reasoning-preserve",), env="LLAMA_ARG_REASONING_PRESERVE",
        topic=_REASONING,
        doc="keep the reasoning of earlier answers in the prompt, where the chat template can")
    reasoning_control: bool = param(
        False, http=("reasoning_control",), topic=_REASONING,
        doc="let POST /v1/chat/completions/control end the reasoning of this answer")
    skip_chat_parsing: bool = param(
        False, "--skip-chat-parsing", negated=("--no-skip-chat-parsing",), env="LLAMA_ARG_SKIP_CHAT_PARSING",
        doc="leave answers as the model writes them: no tool calls, no reasoning apart")
    special: bool = param(False, "-sp", "--special", doc="write special tokens as text")


POOLINGS = ("none", "mean", "cls", "last", "rank")


@dataclass(frozen=True, slots=True)
class EmbeddingParams:
    """Embeddings and reranking."""

    embeddings: bool = param(
        False, "--embeddings", "--embedding", env="LLAMA_ARG_EMBEDDINGS",
        doc="get ready for embeddings at the start; without it the first request for them does that")
    rerank: bool = param(
        False, "--rerank", "--reranking", env="LLAMA_ARG_RERANKING",
        doc="score texts against queries in place of embedding them; the same as --embeddings --pooling rank")
    pooling: str | None = param(
        None, "--pooling", env="LLAMA_ARG_POOLING", choices=POOLINGS, metavar="none|mean|cls|last|rank",
        doc="how the vectors of a text's tokens become one; if not given, as the model was trained, else their mean")
    embd_normalize: int = param(
        2, "--embd-normalize", http=("embd_normalize",), low=-1, high=INT32_MAX,
        doc="norm of an embedding: 2 Euclidean, 1 taxicab, larger the p-norm, 0 a largest value of 32760, -1 as it is")


@dataclass(frozen=True, slots=True)
class ServerParams:
    """The HTTP side: addresses, keys, limits, endpoints."""

    host: tuple[str, ...] = param(
        ("127.0.0.1",), "--host", env="LLAMA_ARG_HOST", syntax=Syntax.CSV, min_items=1, max_items=64, metavar="HOSTS",
        doc="addresses to listen on, or paths of UNIX sockets that end in .sock")
    port: int = param(
        8080, "--port", env="LLAMA_ARG_PORT", low=0, high=65535, metavar="PORT",
        doc="port to listen on; 0 takes a free one")
    reuse_port: bool = param(
        False, "--reuse-port", env="LLAMA_ARG_REUSE_PORT", doc="let several servers share the port (SO_REUSEPORT)")
    path: str | None = param(
        None, "--path", env="LLAMA_ARG_STATIC_PATH", metavar="DIR", doc="a directory to serve in place of the web page")
    ui: bool = param(
        True, "--ui", "--webui", negated=("--no-ui", "--no-webui"), env="LLAMA_ARG_UI", doc="serve the web page")
    api_prefix: str = param(
        "", "--api-prefix", env="LLAMA_ARG_API_PREFIX", metavar="PREFIX", doc="what every path of the API begins with")
    cors_origins: tuple[str, ...] = param(
        ("*",), "--cors-origins", env="LLAMA_ARG_CORS_ORIGINS", syntax=Syntax.CSV, metavar="ORIGINS",
        doc="origins whose pages may use the API; localhost stands for all local ones")
    cors_methods: tuple[str, ...] = param(
        ("GET", "POST", "DELETE", "OPTIONS"), "--cors-methods", env="LLAMA_ARG_CORS_METHODS", syntax=Syntax.CSV,
        metavar="METHODS",
        doc="methods that they may use")
    cors_headers: tuple[str, ...] = param(
        ("*",), "--cors-headers", env="LLAMA_ARG_CORS_HEADERS", syntax=Syntax.CSV, metavar="HEADERS",
        doc="request headers that they may send")
    cors_credentials: bool = param(
        True, "--cors-credentials", negated=("--no-cors-credentials",), env="LLAMA_ARG_CORS_CREDENTIALS",
        doc="let them send credentials")
    api_key: tuple[str, ...] = param(
        (), "--api-key", env="LLAMA_API_KEY", syntax=Syntax.CSV, repeat=True, min_items=1, metavar="KEYS", secret=True,
        doc="keys, one of which a request must carry; without any, every request is served")
    api_key_file: str | None = param(
        None, "--api-key-file", env="LLAMA_ARG_API_KEY_FILE", metavar="FILE",
        doc="a file with further keys, one a line; lines that begin with # are comments")
    ssl_key_file: str | None = param(
        None, "--ssl-key-file", env="LLAMA_ARG_SSL_KEY_FILE", metavar="FILE", doc="private key for TLS (PEM)")
    ssl_cert_file: str | None = param(
        None, "--ssl-cert-file", env="LLAMA_ARG_SSL_CERT_FILE", metavar="FILE", doc="certificate for TLS (PEM)")
    timeout: int = param(
        3600, "-to", "--timeout", env="LLAMA_ARG_TIMEOUT", low=1, high=INT32_MAX,
        doc="seconds after which a silent connection is closed")
    threads_http: int = param(
        -1, "--threads-http", env="LLAMA_ARG_THREADS_HTTP", low=-1, high=INT32_MAX, inert=True,
        doc="accepted without effect: Minka's HTTP side is asynchronous and needs no threads")
    slots: bool = param(
        True, "--slots", negated=("--no-slots",), env="LLAMA_ARG_ENDPOINT_SLOTS", doc="serve GET /slots")
    props: bool = param(False, "--props", env="LLAMA_ARG_ENDPOINT_PROPS", doc="serve POST /props")
    metrics: bool = param(False, "--metrics", env="LLAMA_ARG_ENDPOINT_METRICS", doc="serve GET /metrics for Prometheus")
    slot_save_path: str | None = param(
        None, "--slot-save-path", metavar="DIR",
        doc="a directory for slots that are saved to files; serves POST /slots/{id}")
    data_dir: str | None = param(
        None, "--data-dir", env="MINKA_DATA_DIR", own=True, metavar="DIR",
        doc="a directory for what outlives a restart: files and batch jobs (serves /v1/files and /v1/batches), and "
        "kept responses")
    queue_size: int = param(
        512, "--queue-size", env="MINKA_QUEUE_SIZE", low=0, high=2**20, own=True,
        doc="requests that may wait for a slot; further ones are answered 429 at once")
    body_limit: int = param(
        100, "--body-limit", env="MINKA_BODY_LIMIT", low=1, high=65536, own=True, metavar="MIB",
        doc="the largest request body in MiB; a larger one is answered 413")
    request_timeout: int = param(
        0, "--request-timeout", env="MINKA_REQUEST_TIMEOUT", low=0, high=86400, own=True, metavar="SECONDS",
        doc="the longest time that a request may ask for, in the queue and generating together; 0 is no limit")
    drain_timeout: int = param(
        30, "--drain-timeout", env="MINKA_DRAIN_TIMEOUT", low=0, high=86400, own=True, metavar="SECONDS",
        doc="how long running requests may go on after the server is told to stop")


@dataclass(frozen=True, slots=True)
class LogParams:
    """What is logged, and where to."""

    verbose: bool = param(False, "-v", "--verbose", "--log-verbose", doc="log everything")
    verbosity: int = param(
        3, "-lv", "--verbosity", "--log-verbosity", env="LLAMA_ARG_LOG_VERBOSITY", low=0, high=INT32_MAX,
        doc="how much is logged: 0 output, 1 errors, 2 warnings, 3 information, 4 traces, 5 all")
    log_disable: bool = param(False, "--log-disable", doc="log nothing")
    log_file: str | None = param(
        None, "--log-file", env="LLAMA_ARG_LOG_FILE", metavar="FILE", doc="log to a file as well")
    log_jsonl: bool = param(
        False, "--log-jsonl", negated=("--no-log-jsonl",), env="LLAMA_ARG_LOG_JSONL",
        doc="log one JSON object a line to standard output")
    log_colors: str = param(
        "auto", "--log-colors", env="LLAMA_ARG_LOG_COLORS", choices=("on", "off", "auto"), syntax=Syntax.SWITCH,
        metavar="on|off|auto",
        doc="colours in the log; auto has them on a terminal")
    log_prefix: bool = param(
        True, "--log-prefix", negated=("--no-log-prefix",), env="LLAMA_ARG_LOG_PREFIX",
        doc="begin log lines with their level")
    log_timestamps: bool = param(
        True, "--log-timestamps", negated=("--no-log-timestamps",), env="LLAMA_ARG_LOG_TIMESTAMPS",
        doc="begin log lines with the time")
# fmt: on


GROUPS: Mapping[type[DataclassInstance], str] = MappingProxyType(
    {
        ModelParams: "Model and devices",
        HardwareParams: "Placement of weights",
        LoraParams: "LoRA adapters",
        ContextParams: "Context, batches and KV cache",
        CacheParams: "Prefix cache and scheduling",
        SamplingParams: "Sampling",
        GenerationParams: "Generation",
        ChatParams: "Chat template",
        EmbeddingParams: "Embeddings",
        ServerParams: "Server",
        LogParams: "Log",
    }
)
"""Every dataclass of the table with its heading, in the order of help and documentation."""


class Row(NamedTuple):
    """A parameter of the table: its attribute, what it is, its default, and the rest."""

    name: str
    type: Kind
    default: object
    param: Param

    @property
    def range(self) -> str:
        """The values that are allowed, for a person; empty if the type says it all."""
        param = self.param
        if param.choices:
            return ", ".join(param.choices)
        if param.low is None or param.high is None:
            return ""
        names = {value: word for word, value in param.named}
        words = [names.get(value, str(value)) for value in param.besides]
        words.append(f"{number(param.low)}..{number(param.high)}")
        return " or ".join(words) + (", limited" if param.clamp else "")


@cache
def _rows(cls: type) -> tuple[Row, ...]:
    fields = dataclasses.fields(cls)
    return tuple(Row(field.name, _KINDS[str(field.type)], field.default, field.metadata["param"]) for field in fields)


def rows(cls: type[DataclassInstance]) -> Iterator[Row]:
    """The rows of one of the dataclasses above, in order."""
    return iter(_rows(cls))


def number(value: float) -> str:
    """A number as short text; one that is too long to read is only called so."""
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a larger number"
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)


class BadValueError(ValueError):
    """A value that a row does not take. The text follows the name of the field, flag or variable: `must be ...`."""


def limit(row: Row, value: float) -> float:
    """The number if it is in the row's range, or what the row makes of it.

    Raises BadValueError if it is outside of a range that is not clamped, or is no finite number.
    """
    param = row.param
    if param.low is None or param.high is None or param.low <= value <= param.high or value in param.besides:
        return value
    if value != value or value in (inf, -inf):
        raise BadValueError("must be a finite number")
    if param.reset and value < param.low:
        return cast("float", row.default)
    if param.clamp:
        return min(max(value, param.low), param.high)
    also = "".join(f"{number(allowed)} or " for allowed in param.besides)
    raise BadValueError(f"must be {also}between {number(param.low)} and {number(param.high)}, but got {number(value)}")


def check_items(row: Row, items: tuple[T, ...]) -> tuple[T, ...]:
    """The list if it has neither too few nor too many items; raises BadValueError."""
    if len(items) < row.param.min_items:
        raise BadValueError(f"needs at least {row.param.min_items} value")
    if len(items) > row.param.max_items:
        raise BadValueError(f"takes at most {row.param.max_items} values, but got {len(items)}")
    return items


_SAMPLER_LETTERS = {letter: name for name, letter in SAMPLERS.items()}
_SAMPLER_NAMES = {
    **{spelling: name for name in SAMPLERS for spelling in (name, name.replace("_", "-"), name.replace("_", ""))},
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
    "typical": "typ_p",
    "typical_p": "typ_p",
    "typical-p": "typ_p",
}


def samplers_from_names(names: Collection[str]) -> tuple[str, ...]:
    """Canonical sampler names of names in any of their spellings; raises BadValueError for an unknown one.

    llama-server skips an unknown name, which turns a misspelled sampler off without a word.
    """
    try:
        return tuple(_SAMPLER_NAMES[name.strip().lower()] for name in names)
    except KeyError as error:
        raise BadValueError(f"has no sampler {error.args[0][:40]!r}; there are {', '.join(SAMPLERS)}") from None


def samplers_from_letters(letters: str) -> tuple[str, ...]:
    """Sampler names of letters such as `edskypmxt`; raises BadValueError for an unknown one."""
    try:
        return tuple(_SAMPLER_LETTERS[letter] for letter in letters)
    except KeyError as error:
        known = ", ".join(f"{letter} ({name})" for letter, name in _SAMPLER_LETTERS.items())
        raise BadValueError(f"has no sampler letter {error.args[0]!r}; there are {known}") from None


def json_type(value: object) -> str:
    """What JSON calls a value, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case _:
            return "an array"


_ABSENT = object()
_Decode = Callable[[object], object]


def _bool_decoder(row: Row) -> _Decode:
    def decode(value: object) -> object:
        if value is True or value is False:
            return value
        raise BadValueError(f"must be a boolean, but got {json_type(value)}")

    return decode


def _int_decoder(row: Row) -> _Decode:
    def decode(value: object) -> object:
        if type(value) is int:
            return limit(row, value)
        if isinstance(value, float):
            if value.is_integer():
                return limit(row, int(value))
            raise BadValueError(f"must be an integer, but got {value}")
        raise BadValueError(f"must be an integer, but got {json_type(value)}")

    return decode


def _float_decoder(row: Row) -> _Decode:
    def decode(value: object) -> object:
        if type(value) is float or type(value) is int:
            return float(limit(row, value))
        raise BadValueError(f"must be a number, but got {json_type(value)}")

    return decode


def _strings_decoder(row: Row) -> _Decode:
    lone, skip_empty = row.param.lone, row.param.skip_empty
    expected = "must be a string or an array of strings" if lone else "must be an array of strings"

    def decode(value: object) -> object:
        if lone and isinstance(value, str):
            value = [value]
        if not isinstance(value, (list, tuple)):
            raise BadValueError(f"{expected}, but got {json_type(value)}")
        for item in value:
            if not isinstance(item, str):
                raise BadValueError(f"{expected}, but has {json_type(item)} in it")
        items = tuple(item for item in value if item) if skip_empty else tuple(value)
        return check_items(row, items) if items or not skip_empty else _ABSENT

    return decode


MAX_STRING = 1024
"""Characters of a string field."""


def _string_decoder(row: Row) -> _Decode:
    choices = row.param.choices

    def decode(value: object) -> object:
        if not isinstance(value, str):
            raise BadValueError(f"must be a string, but got {json_type(value)}")
        if len(value) > MAX_STRING:
            raise BadValueError(f"must have at most {MAX_STRING} characters, but has {len(value)}")
        if choices and value not in choices:
            raise BadValueError(f"must be {', '.join(choices[:-1])} or {choices[-1]}, but got {value!r}")
        return value

    return decode


def _samplers_decoder(row: Row) -> _Decode:
    strings = _strings_decoder(row)

    def decode(value: object) -> object:
        if isinstance(value, str):
            return check_items(row, samplers_from_letters(value))
        return samplers_from_names(cast("tuple[str, ...]", strings(value)))

    return decode


_DECODERS: Mapping[Kind, Callable[[Row], _Decode]] = {
    Kind.BOOL: _bool_decoder,
    Kind.INT: _int_decoder,
    Kind.FLOAT: _float_decoder,
    Kind.STR: _string_decoder,
    Kind.STRS: _strings_decoder,
}


class _Field(NamedTuple):
    """One name of a request field: its attribute's place in the dataclass, its rank among the names, its decoder."""

    place: int
    rank: int
    decode: _Decode


class _Wire(NamedTuple):
    """What reading a request needs of a dataclass: its request fields by name, and all its attributes as a tuple."""

    fields: Mapping[str, _Field]
    values: Callable[[object], tuple[object, ...]]


@cache
def _wire(cls: type) -> _Wire:
    fields: dict[str, _Field] = {}
    for place, row in enumerate(_rows(cls)):
        if row.type in (Kind.BIASES, Kind.ADAPTERS):
            continue  # they take a tokenizer, or the list of adapters
        for rank, name in enumerate(row.param.http):
            make = _samplers_decoder if row.param.syntax is Syntax.SAMPLERS else _DECODERS[row.type]
            fields[name] = _Field(place, rank, make(row))
    return _Wire(fields, attrgetter(*(row.name for row in _rows(cls))))


def parse_fields(cls: type[D], body: Mapping[str, object], defaults: D) -> D:
    """The parameters of a request: `defaults` with what the JSON object `body` sets.

    null is absent; of several names of a field the first one in the table wins; names that the table does not know are
    left to the caller. `logit_bias` and `lora` are left out, as they take more. Raises RequestError, which names the
    field.
    """
    fields, values = _wire(cls)
    chosen: dict[int, tuple[int, object]] = {}
    for name, value in body.items():
        field = fields.get(name)
        if field is None or value is None:
            continue
        try:
            decoded = field.decode(value)
        except BadValueError as error:
            raise RequestError(f'field "{name}" {error}', param=name) from None
        if decoded is not _ABSENT and (field.place not in chosen or field.rank < chosen[field.place][0]):
            chosen[field.place] = (field.rank, decoded)
    if not chosen:
        return defaults
    merged = list(values(defaults))
    for place, (_, decoded) in chosen.items():
        merged[place] = decoded
    return cls(*merged)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A flag of llama-server that has no row above.

    `values` is how many arguments it takes. `off` are values, and `negated` whole flags, that are accepted because they
    ask for what Minka does anyway. `note` says why the flag is refused ("is a llama.cpp flag that ..."), or, in
    IGNORED, why it has no effect.
    """

    flags: tuple[str, ...]
    env: str | None
    values: int
    negated: tuple[str, ...]
    off: tuple[str, ...]
    note: str


NOT_YET = "Minka does not support yet"


def foreign(
    *flags: str,
    values: int = 1,
    env: str | None = None,
    negated: tuple[str, ...] = (),
    off: tuple[str, ...] = (),
    note: str = NOT_YET,
) -> Foreign:
    """A flag of llama-server that has no row, with one value if not said otherwise."""
    return Foreign(flags, env, values, negated, off, note)


def _removed(*flags: str, env: str | None = None, values: int = 1, use: str) -> Foreign:
    return foreign(*flags, env=env, values=values, note=f"has been removed: use {use}")


# fmt: off
IGNORED: tuple[Foreign, ...] = (
    foreign("-dt", "--defrag-thold", env="LLAMA_ARG_DEFRAG_THOLD", note="the KV cache needs no defragmentation"),
    foreign("-fit", "--fit", env="LLAMA_ARG_FIT", note="Minka does not change what you set to fit the memory"),
    foreign("-fitt", "--fit-target", env="LLAMA_ARG_FIT_TARGET", note="see --fit"),
    foreign("-fitc", "--fit-ctx", env="LLAMA_ARG_FIT_CTX", note="see --fit"),
    foreign("-sps", "--slot-prompt-similarity", note="Minka looks for a shared prefix in every slot"),
    foreign("--mmproj-offload", values=0, negated=("--no-mmproj-offload",), env="LLAMA_ARG_MMPROJ_OFFLOAD",
            note="there is no projector to offload"),
)
"""Flags of llama-server that are accepted and have no effect; `note` says why."""

UNSUPPORTED: tuple[Foreign, ...] = (
    # meta, logging
    foreign("-cl", "--cache-list", values=0,
            note="Minka does not have: the models are in Hugging Face's cache, which `hf cache ls` lists"),
    foreign("--log-prompts-dir"),
    # context and caches
    foreign("--sleep-idle-seconds", off=("-1",)),
    # model and devices
    foreign("-mu", "--model-url", env="LLAMA_ARG_MODEL_URL",
            note="Minka does not have: download the file and give it with -m, or name its repository with -hf"),
    foreign("-dr", "--docker-repo", env="LLAMA_ARG_DOCKER_REPO",
            note="Minka does not have: name a Hugging Face repository with -hf, or give a file with -m"),
    foreign("--rpc", env="LLAMA_ARG_RPC",
            note="Minka does not have: it computes on the devices of this machine only, see --list-devices"),
    _removed("--mmap", values=0, env="LLAMA_ARG_MMAP", use="--load-mode mmap"),
    _removed("--no-mmap", values=0, env="LLAMA_ARG_NO_MMAP", use="--load-mode none"),
    _removed("--mlock", values=0, env="LLAMA_ARG_MLOCK", use="--load-mode mlock"),
    _removed("-dio", "--direct-io", values=0, env="LLAMA_ARG_DIO", use="--load-mode dio"),
    # images, sound, video
    foreign("-mm", "--mmproj", env="LLAMA_ARG_MMPROJ"),
    foreign("-mmu", "--mmproj-url", env="LLAMA_ARG_MMPROJ_URL"),
    foreign("--mmproj-auto", values=0, negated=("--no-mmproj", "--no-mmproj-auto"), env="LLAMA_ARG_MMPROJ_AUTO"),
    foreign("-mmdev", "--mmproj-device", env="MTMD_BACKEND_DEVICE"),
    foreign("--image-min-tokens", env="LLAMA_ARG_IMAGE_MIN_TOKENS"),
    foreign("--image-max-tokens", env="LLAMA_ARG_IMAGE_MAX_TOKENS"),
    foreign("--mtmd-batch-max-tokens", env="LLAMA_ARG_MTMD_BATCH_MAX_TOKENS"),
    foreign("--video-fps", env="LLAMA_ARG_VIDEO_FPS"),
    foreign("--video-timestamp-interval", env="LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL"),
    foreign("--video-ffmpeg-dir", env="LLAMA_ARG_VIDEO_FFMPEG_DIR"),
    foreign("--media-path"),
    # sampling and constraints
    # server
    foreign("--ui-config", "--webui-config", env="LLAMA_ARG_UI_CONFIG", off=("", "{}")),
    foreign("--ui-config-file", "--webui-config-file", env="LLAMA_ARG_UI_CONFIG_FILE"),
    foreign("--ui-mcp-proxy", "--webui-mcp-proxy", values=0, negated=("--no-ui-mcp-proxy", "--no-webui-mcp-proxy"),
            env="LLAMA_ARG_UI_MCP_PROXY"),
    foreign("--tools", env="LLAMA_ARG_TOOLS"),
    foreign("--tools-runtime", env="LLAMA_ARG_TOOLS_RUNTIME"),
    foreign("--mcp-servers-config", env="LLAMA_ARG_MCP_SERVERS_CONFIG"),
    foreign("--mcp-servers-json", env="LLAMA_ARG_MCP_SERVERS_JSON"),
    foreign("-ag", "--agent", values=0, negated=("-no-ag", "--no-agent"), env="LLAMA_ARG_AGENT"),
    # router
    foreign("--models-dir", env="LLAMA_ARG_MODELS_DIR"),
    foreign("--models-preset", env="LLAMA_ARG_MODELS_PRESET"),
    foreign("--models-max", env="LLAMA_ARG_MODELS_MAX"),
    foreign("--models-autoload", values=0, negated=("--no-models-autoload",), env="LLAMA_ARG_MODELS_AUTOLOAD"),
    # speculative decoding
    foreign("-lcs", "--lookup-cache-static"),
    foreign("-lcd", "--lookup-cache-dynamic"),
    foreign("--spec-type", env="LLAMA_ARG_SPEC_TYPE", off=("none",)),
    foreign("--spec-default", values=0),
    foreign("--spec-draft-model", "-md", "--model-draft", env="LLAMA_ARG_SPEC_DRAFT_MODEL"),
    foreign("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft", env="LLAMA_ARG_SPEC_DRAFT_HF_REPO"),
    foreign("--spec-draft-n-max", env="LLAMA_ARG_SPEC_DRAFT_N_MAX", off=("0",)),
    foreign("--spec-draft-n-min", env="LLAMA_ARG_SPEC_DRAFT_N_MIN", off=("0",)),
    foreign("--spec-draft-p-min", "--draft-p-min", env="LLAMA_ARG_SPEC_DRAFT_P_MIN"),
    foreign("--spec-draft-p-split", "--draft-p-split", env="LLAMA_ARG_SPEC_DRAFT_P_SPLIT"),
    foreign("--spec-draft-backend-sampling", values=0, negated=("--no-spec-draft-backend-sampling",),
            env="LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING"),
    foreign("--spec-draft-device", "-devd", "--device-draft"),
    foreign("--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft",
            env="LLAMA_ARG_N_GPU_LAYERS_DRAFT"),
    foreign("--spec-draft-type-k", "-ctkd", "--cache-type-k-draft", env="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"),
    foreign("--spec-draft-type-v", "-ctvd", "--cache-type-v-draft", env="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"),
    foreign("--spec-draft-override-tensor", "-otd", "--override-tensor-draft"),
    foreign("--spec-draft-cpu-moe", "-cmoed", "--cpu-moe-draft", values=0, env="LLAMA_ARG_SPEC_DRAFT_CPU_MOE"),
    foreign("--spec-draft-n-cpu-moe", "--spec-draft-ncmoe", "-ncmoed", "--n-cpu-moe-draft",
            env="LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE"),
    foreign("--spec-draft-threads", "-td", "--threads-draft"),
    foreign("--spec-draft-threads-batch", "-tbd", "--threads-batch-draft"),
    foreign("--spec-draft-cpu-mask", "-Cd", "--cpu-mask-draft"),
    foreign("--spec-draft-cpu-range", "-Crd", "--cpu-range-draft"),
    foreign("--spec-draft-cpu-strict", "--cpu-strict-draft"),
    foreign("--spec-draft-prio", "--prio-draft"),
    foreign("--spec-draft-poll", "--poll-draft"),
    foreign("--spec-draft-cpu-mask-batch", "-Cbd", "--cpu-mask-batch-draft"),
    foreign("--spec-draft-cpu-strict-batch", "--cpu-strict-batch-draft"),
    foreign("--spec-draft-prio-batch", "--prio-batch-draft"),
    foreign("--spec-draft-poll-batch", "--poll-batch-draft"),
    foreign("--spec-synth-len", env="LLAMA_ARG_SPEC_SYNTH_LEN"),
    foreign("--spec-synth-rates", env="LLAMA_ARG_SPEC_SYNTH_RATES"),
    foreign("--spec-ngram-mod-n-match"),
    foreign("--spec-ngram-mod-n-min"),
    foreign("--spec-ngram-mod-n-max"),
    foreign("--spec-ngram-simple-size-n"),
    foreign("--spec-ngram-simple-size-m"),
    foreign("--spec-ngram-simple-min-hits"),
    foreign("--spec-ngram-map-k-size-n"),
    foreign("--spec-ngram-map-k-size-m"),
    foreign("--spec-ngram-map-k-min-hits"),
    foreign("--spec-ngram-map-k4v-size-n"),
    foreign("--spec-ngram-map-k4v-size-m"),
    foreign("--spec-ngram-map-k4v-min-hits"),
    _removed("--draft", "--draft-n", "--draft-max", env="LLAMA_ARG_DRAFT_MAX",
             use="--spec-draft-n-max or --spec-ngram-mod-n-max"),
    _removed("--draft-min", "--draft-n-min", env="LLAMA_ARG_DRAFT_MIN",
             use="--spec-draft-n-min or --spec-ngram-mod-n-min"),
    _removed("--spec-ngram-size-n", use="--spec-ngram-*-size-n or --spec-ngram-mod-n-match"),
    _removed("--spec-ngram-size-m", use="--spec-ngram-*-size-m"),
    _removed("--spec-ngram-min-hits", use="--spec-ngram-*-min-hits"),
    # model presets
    foreign("--embd-gemma-default", values=0),
    foreign("--fim-qwen-1.5b-default", values=0),
    foreign("--fim-qwen-3b-default", values=0),
    foreign("--fim-qwen-7b-default", values=0),
    foreign("--fim-qwen-7b-spec", values=0),
    foreign("--fim-qwen-14b-spec", values=0),
    foreign("--fim-qwen-30b-default", values=0),
    foreign("--gpt-oss-20b-default", values=0),
    foreign("--gpt-oss-120b-default", values=0),
    foreign("--vision-gemma-4b-default", values=0),
    foreign("--vision-gemma-12b-default", values=0),
)
"""Every other flag of llama-server: using one is an error, but for what `off` and `negated` allow."""
# fmt: on

UNSUPPORTED_FIELDS: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "grammar_lazy": (False,),
        "grammar_triggers": ([],),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "parse_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
    }
)
"""Request fields of OpenAI and llama-server that Minka does not support yet, with the values that ask for nothing."""

ACCEPTED_FIELDS: Mapping[str, tuple[object, ...] | None] = MappingProxyType(
    {
        "model": None,
        "user": None,
        "metadata": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "store": (False,),
        "service_tier": ("auto", "default"),
        "verbosity": ("low", "medium", "high"),
    }
)
"""Request fields of OpenAI that need no support and are ignored: with any value (None), or with these values."""


def refuse_unsupported(body: Mapping[str, object], *, supported: Collection[str] = ()) -> None:
    """Raise UnsupportedError, which names the field, if a request asks for what Minka does not support yet.

    null is absent. `supported` are fields that the caller reads itself, whatever the tables say.
    """
    for name, value in body.items():
        neutral = UNSUPPORTED_FIELDS.get(name, ACCEPTED_FIELDS.get(name))
        if value is None or neutral is None or name in supported or value in neutral:
            continue
        allowed = f"; only {' or '.join(json.dumps(choice) for choice in neutral)} is" if neutral else ""
        raise UnsupportedError(f'field "{name}" is not supported yet{allowed}', param=name)
