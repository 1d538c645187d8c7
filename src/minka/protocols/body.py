"""What all completion requests have in common: the body's fields, prompts in every form, biases, the job.

The last place that sees JSON on the way in.
"""

from __future__ import annotations

import math
import re
import secrets
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import msgspec

from minka.errors import RequestError, UnsupportedError
from minka.params import HUGE, Adapters, GenerationParams, SamplingParams, json_type, parse_fields, refuse_unsupported
from minka.protocols.constraint import Content, decode_constraint, decode_content
from minka.protocols.schema import FLAG, TEXT, TOKEN, Field, either, listed, record
from minka.protocols.served import Served
from minka.protocols.triggers import decode_preserved
from minka.types import Adapter, Constraint, Job, Priority, Tokenizer

JsonObject = Mapping[str, object]

MAX_STOP_LENGTH = 4096
"""Characters of all stop strings together: each token is searched for all of them."""

MAX_PROMPTS = 1024
"""Prompts in one request."""

_ID = re.compile(r"-?[0-9]{1,18}")
_ALPHANUMERIC = string.ascii_letters + string.digits

_PROMPT = either(TEXT, listed(either(TOKEN, TEXT)), record(prompt_string=TEXT))
PROMPT_FIELD = Field(
    "prompt",
    {**either(_PROMPT, listed(_PROMPT, maxItems=MAX_PROMPTS)), "title": "text or ids, or a list of them"},
    "a text, token ids, a mix of both, an object with prompt_string, or a list of these for several prompts",
    required=True,
)
STREAM_OPTIONS_FIELD = Field(
    "stream_options",
    record(include_usage=FLAG, continuous_usage_stats=FLAG),
    "include_usage: end the stream with an event that has the usage; with continuous_usage_stats as well, every event "
    "has the usage so far",
)
READ_BY_ALL = frozenset({"stream_options", "preserved_tokens"})
"""Fields that `decode_options` reads besides the parameter table's, of whichever route."""


def decode_json(raw: bytes) -> JsonObject:
    """The JSON object of a request body. Raises RequestError for anything else, and says where it is broken."""
    value = decode_value(raw)
    if not isinstance(value, dict):
        raise RequestError(f"the request body must be a JSON object, but is {json_type(value)}")
    return value


def decode_value(raw: bytes) -> object:
    """The JSON value of a request body. Raises RequestError, and says where it is broken."""
    if not raw.strip():
        raise RequestError("the request body is empty; send a JSON object")
    try:
        value: object = msgspec.json.decode(raw)
    except RecursionError:
        raise RequestError("the request body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from None
    _check_finite(value)
    return value


def _check_finite(value: object) -> None:
    """A number such as 1e400 is infinite once decoded; nothing infinite may get further."""
    open_values = [value]
    while open_values:
        match open_values.pop():
            case float() as number if not math.isfinite(number):
                raise RequestError("the request body has a number that is too large")
            case dict() as members:
                open_values.extend(members.values())
            case list() as items:
                open_values.extend(items)


def new_id(prefix: str) -> str:
    """A random id such as `chatcmpl-` and 32 letters and digits."""
    return prefix + "".join(secrets.choice(_ALPHANUMERIC) for _ in range(32))


@dataclass(frozen=True, slots=True)
class Options:
    """The fields that all completion requests share."""

    sampling: SamplingParams
    generation: GenerationParams
    max_jobs: int
    """Completions that one request may ask for, of all its prompts together."""
    usage_in_stream: bool = False
    usage_so_far: bool = False
    """Whether every event of a stream has the usage up to it."""
    n_top: int | None = None
    """Alternatives of each token that are shown, None for as many as the engine reports."""
    lora: Adapters = ()
    """The request's adapters, or else the server's."""
    content: Content | None = None
    """What the text has to match."""
    constraint: Constraint | None = None
    """The same for a text that has no reasoning and no tools."""
    preserved_tokens: frozenset[int] = frozenset()


def decode_options(body: JsonObject, served: Served, *, supported: Collection[str] = ()) -> Options:
    """Read the shared fields; `supported` are further ones that the protocol reads itself."""
    refuse_unsupported(body, supported=supported)
    generation = parse_fields(GenerationParams, body, served.generation)
    if sum(map(len, generation.stop)) > MAX_STOP_LENGTH:
        raise RequestError(f'the strings of "stop" have more than {MAX_STOP_LENGTH} characters', param="stop")
    if generation.n_cmpl > served.n_slots:
        raise RequestError(f'"n" must be at most {served.n_slots}, the number of slots', param="n")
    if generation.id_slot >= served.n_slots:
        raise RequestError(f'"id_slot" must be -1 to {served.n_slots - 1}', param="id_slot")
    sampling = parse_fields(SamplingParams, body, served.sampling)
    if body.get("logit_bias") is not None:
        sampling = replace(sampling, logit_bias=decode_biases(body["logit_bias"], served.tokenizer))
    if sampling.ignore_eos:
        forbidden = tuple((token, -math.inf) for token in sorted(served.tokenizer.eog))
        sampling = replace(sampling, logit_bias=sampling.logit_bias + forbidden)
    content = decode_content(body, served.content)
    return Options(
        sampling,
        generation,
        served.max_jobs,
        *_stream_options(body),
        lora=decode_lora(body.get("lora"), served.adapters),
        content=content,
        constraint=decode_constraint(body, content, served.tokenizer),
        preserved_tokens=decode_preserved(body, served.tokenizer),
    )


def _stream_options(body: JsonObject) -> tuple[bool, bool]:
    """`include_usage`, and `continuous_usage_stats`, which means nothing without the first."""
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not isinstance(options, dict):
        raise RequestError(f'"stream_options" must be an object, but is {json_type(options)}', param="stream_options")
    said = [options.get(name) for name in ("include_usage", "continuous_usage_stats")]
    if not all(isinstance(value, bool | None) for value in said):
        raise RequestError(
            '"include_usage" and "continuous_usage_stats" in "stream_options" must be true or false',
            param="stream_options",
        )
    return bool(said[0]), all(said)


def jobs(prompts: Sequence[Sequence[int]], options: Options, id: str) -> tuple[Job, ...]:
    """One job a completion: all of the first prompt, then all of the second, ... Ids are `id:0`, `id:1`, ...

    Further completions of a prompt get the following seeds.
    """
    generation, sampling, n = options.generation, options.sampling, options.generation.n_cmpl
    if len(prompts) * n > options.max_jobs:
        raise RequestError(
            f"the request asks for {len(prompts) * n} completions, but the server takes {options.max_jobs} at most",
            param="prompt",
        )
    seeds = [sampling.seed + choice if sampling.seed >= 0 else -1 for choice in range(n)]
    return tuple(
        Job(
            id=f"{id}:{index}",
            prompt=tuple(prompt),
            sampling=replace(sampling, seed=seed % 2**32 if seed >= 0 else -1),
            n_predict=generation.n_predict,
            n_keep=generation.n_keep,
            n_discard=generation.n_discard,
            n_cache_reuse=generation.n_cache_reuse,
            stop=generation.stop,
            t_max_predict_ms=generation.t_max_predict_ms,
            priority=Priority(generation.priority),
            id_slot=generation.id_slot,
            cache_prompt=generation.cache_prompt,
            cache_salt=generation.cache_salt,
            timeout_ms=generation.timeout_ms,
            return_progress=generation.return_progress,
            n_indent=generation.n_indent,
            close_at_limit=generation.close_at_limit,
            lora=options.lora,
            preserved_tokens=options.preserved_tokens,
            constraint=options.constraint,
        )
        for index, (prompt, seed) in enumerate((p, s) for p in prompts for s in seeds)
    )


# -- adapters ----------------------------------------------------------------------------------------------------------


def decode_lora(value: object, known: Sequence[Adapter]) -> Adapters:
    """`[{"id": id, "scale": scale}, ...]`: these adapters and no others. Without it, all with the server's factors."""
    if value is None:
        return tuple((adapter.id, adapter.scale) for adapter in known if adapter.scale)
    if not isinstance(value, list):
        raise RequestError(f'"lora" must be a list of adapters, but is {json_type(value)}', param="lora")
    ids = {adapter.id for adapter in known}
    scales: dict[int, float] = {}
    for index, entry in enumerate(value):
        id, scale = _adapter(entry, f"lora[{index}]")
        if id not in ids:
            raise RequestError(f'"lora[{index}].id": there is no adapter {id}; see GET /lora-adapters', param="lora")
        scales[id] = scale
    return tuple((id, scale) for id, scale in sorted(scales.items()) if scale)


def _adapter(entry: object, path: str) -> tuple[int, float]:
    if not isinstance(entry, dict):
        raise RequestError(f'"{path}" must be an object with "id" and "scale", but is {json_type(entry)}', param="lora")
    id, scale = entry.get("id"), entry.get("scale", 1.0)
    if not _is_id(id):
        raise RequestError(f'"{path}.id" must be the number of an adapter', param="lora")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= HUGE:
        raise RequestError(f'"{path}.scale" must be a number between {-HUGE:g} and {HUGE:g}', param="lora")
    return id, float(scale)


# -- prompts -----------------------------------------------------------------------------------------------------------


def decode_prompts(value: object, tokenizer: Tokenizer) -> list[list[int]]:
    """One or several prompts: a string, token ids, a mix of both, an object with `prompt_string`, or a list of them."""
    if value is None:
        raise RequestError('"prompt" is required', param="prompt")
    if isinstance(value, list) and value and not _is_sequence(value):
        if len(value) > MAX_PROMPTS:
            raise RequestError(f'"prompt" has {len(value)} prompts, at most {MAX_PROMPTS} are allowed', param="prompt")
        return [_prompt(item, tokenizer, f"prompt[{index}]") for index, item in enumerate(value)]
    return [_prompt(value, tokenizer, "prompt")]


def _is_sequence(items: list[object]) -> bool:
    """Whether a list is one prompt: token ids, perhaps mixed with strings. A list of strings is many prompts."""
    return any(_is_id(item) for item in items) and all(_is_id(item) or isinstance(item, str) for item in items)


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompt(value: object, tokenizer: Tokenizer, path: str) -> list[int]:
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            raise UnsupportedError("this model has no multimodal support", param=f"{path}.multimodal_data")
        value = value.get("prompt_string")
        path += ".prompt_string"
    if isinstance(value, str):
        return tokenizer.tokenize(value, add_special=True, parse_special=True)
    if isinstance(value, list):
        return decode_mixed(value, tokenizer, add_special=True, parse_special=True, path=path)
    raise RequestError(f'"{path}" must be a string or token ids, but is {json_type(value)}', param=path)


def decode_mixed(
    items: Sequence[object], tokenizer: Tokenizer, *, add_special: bool, parse_special: bool, path: str
) -> list[int]:
    """Tokens of a list of ids and strings. Special tokens are added only in front of a first string."""
    tokens: list[int] = []
    for index, item in enumerate(items):
        if isinstance(item, str):
            tokens += tokenizer.tokenize(item, add_special=add_special and index == 0, parse_special=parse_special)
        else:
            tokens.append(check_token(item, tokenizer, f"{path}[{index}]"))
    return tokens


def check_token(value: object, tokenizer: Tokenizer, path: str) -> int:
    """A token id of the vocabulary, or RequestError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f'"{path}" must be a token id, but is {json_type(value)}', param=path)
    if not 0 <= value < tokenizer.n_tokens:
        raise RequestError(
            f'"{path}": token id {value} is outside the vocabulary (0 to {tokenizer.n_tokens - 1})', param=path
        )
    return value


# -- logit bias --------------------------------------------------------------------------------------------------------


def decode_biases(value: object, tokenizer: Tokenizer) -> tuple[tuple[int, float], ...]:
    """`[[id or string, bias], ...]` or `{"id or string": bias}`; false forbids. A string biases each of its tokens."""
    match value:
        case dict():
            pairs = [(int(key) if _ID.fullmatch(key) else key, bias) for key, bias in value.items()]
        case list() if all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            pairs = [(key, bias) for key, bias in value]
        case _:
            raise RequestError('"logit_bias" must be an object or a list of [token, bias] pairs', param="logit_bias")
    return tuple((token, _bias(bias)) for key, bias in pairs for token in _biased(key, tokenizer))


def _biased(key: object, tokenizer: Tokenizer) -> Sequence[int]:
    if isinstance(key, str):
        return tokenizer.tokenize(key, add_special=False, parse_special=False)
    return (check_token(key, tokenizer, "logit_bias"),)


def _bias(value: object) -> float:
    if value is False:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= HUGE:
        raise RequestError(f'a bias in "logit_bias" must be a number up to {HUGE:g} or false', param="logit_bias")
    return float(value)
