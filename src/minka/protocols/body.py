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

import msgspec

from minka.errors import RequestError, UnsupportedError
from minka.params import HUGE, GenerationParams, SamplingParams, json_type, parse_fields, refuse_unsupported
from minka.protocols.schema import FLAG, TEXT, TOKEN, Field, either, listed, record
from minka.protocols.served import Served
from minka.types import Job, Priority, Tokenizer

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
    "stream_options", record(include_usage=FLAG), "include_usage: end the stream with an event that has the usage"
)


def decode_json(raw: bytes) -> JsonObject:
    """The JSON object of a request body. Raises RequestError for anything else, and says where it is broken."""
    if not raw.strip():
        raise RequestError("the request body is empty; send a JSON object")
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        raise RequestError("the request body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"the request body must be a JSON object, but is {json_type(value)}")
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
    n_top: int | None = None
    """Alternatives of each token that are shown, None for as many as the engine reports."""


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
    if generation.n_indent != served.generation.n_indent:
        raise UnsupportedError('field "n_indent" is not supported yet; only the default is', param="n_indent")
    sampling = parse_fields(SamplingParams, body, served.sampling)
    if body.get("logit_bias") is not None:
        sampling = replace(sampling, logit_bias=decode_biases(body["logit_bias"], served.tokenizer))
    if sampling.ignore_eos:
        forbidden = tuple((token, -math.inf) for token in sorted(served.tokenizer.eog))
        sampling = replace(sampling, logit_bias=sampling.logit_bias + forbidden)
    return Options(sampling, generation, served.max_jobs, _usage_in_stream(body))


def _usage_in_stream(body: JsonObject) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not isinstance(options.get("include_usage", False), bool | None):
        raise RequestError('"stream_options" must be an object with a bool "include_usage"', param="stream_options")
    return bool(options.get("include_usage"))


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
        )
        for index, (prompt, seed) in enumerate((p, s) for p in prompts for s in seeds)
    )


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


def _is_id(value: object) -> bool:
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
