"""Fill in the middle: llama-server's `POST /infill`, and the prompt that such models want, for `suffix` as well.

What the prompt is made of, in order: other files (as far as there is room), the end of the text before the gap, the
beginning of the text after it. Format: https://arxiv.org/abs/2409.12186 (Qwen2.5-Coder), as llama-server writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minka.errors import NotSupportedError, RequestError
from minka.params import json_type
from minka.protocols.body import JsonObject, decode_mixed, decode_options
from minka.protocols.constraint import CONSTRAINT_FIELDS, check
from minka.protocols.native import CHUNK, RESULT, NativeExchange
from minka.protocols.route import Completion
from minka.protocols.schema import TEXT, TOKEN, Field, either, listed, record
from minka.protocols.served import Served
from minka.protocols.thinking import PLAIN_FIELDS, watched
from minka.protocols.triggers import LAZY_FIELDS, TRIGGER_FIELDS
from minka.types import FimTokens

PROJECT = "myproject\n"
FILE = "filename\n"
"""Names of the repository and of the file with the gap, which a request does not tell; llama-server's."""

SNIPPET = "\n\n--- snippet ---\n\n"
"""What stands before another file where the model has no token for it."""

UNNAMED = "tmp"
"""The name of another file that has none."""


@dataclass(frozen=True, slots=True)
class Extra:
    """A part of another file."""

    text: str
    filename: str = UNNAMED


def decode(body: JsonObject, served: Served) -> NativeExchange:
    """A request of one gap."""
    fim_tokens(served)
    options = watched(decode_options(body, served, supported=LAZY_FIELDS), body, served)
    check(options.constraint, served.grammars, options.content)
    prompt = body.get("prompt")
    if not isinstance(prompt, str | None):
        raise RequestError(f'"prompt" must be a string, but is {json_type(prompt)}', param="prompt")
    tokens = infill_prompt(
        served,
        _side(body, "input_prefix", served),
        _side(body, "input_suffix", served),
        prompt=served.tokenizer.tokenize(prompt or "", add_special=False, parse_special=True),
        extra=_extra(body.get("input_extra")),
    )
    return NativeExchange([tokens], options, served, is_list=options.generation.n_cmpl > 1)


def fim_tokens(served: Served) -> FimTokens:
    """The model's tokens for gaps. Raises NotSupportedError (501) if it has none."""
    if served.fim is None:
        raise NotSupportedError(
            "Infill is not supported by this model: its vocabulary has no prefix, suffix and middle tokens"
        )
    return served.fim


def plain_tokens(text: str, served: Served) -> list[int]:
    """Tokens of a user's text, in which no spelling is a special token."""
    return served.tokenizer.tokenize(text, add_special=False, parse_special=False)


def _side(body: JsonObject, name: str, served: Served) -> list[int]:
    value = body.get(name)
    match value:
        case None:
            raise RequestError(f'"{name}" is required', param=name)
        case str():
            return plain_tokens(value, served)
        case list():
            return decode_mixed(value, served.tokenizer, add_special=False, parse_special=False, path=name)
        case _:
            raise RequestError(
                f'"{name}" must be a string or a list of strings and token ids, but is {json_type(value)}', param=name
            )


def _extra(value: object) -> list[Extra]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestError(
            f'"input_extra" must be a list of {{"filename", "text"}}, but is {json_type(value)}', param="input_extra"
        )
    return [_chunk(chunk, f"input_extra[{index}]") for index, chunk in enumerate(value)]


def _chunk(value: object, path: str) -> Extra:
    if not isinstance(value, dict):
        raise RequestError(f'"{path}" must be an object, but is {json_type(value)}', param=path)
    text, name = value.get("text"), value.get("filename")
    if not isinstance(text, str):
        raise RequestError(f'"{path}.text" must be a string, but is {json_type(text)}', param=f"{path}.text")
    if not isinstance(name, str | None):
        raise RequestError(f'"{path}.filename" must be a string, but is {json_type(name)}', param=f"{path}.filename")
    return Extra(text, UNNAMED if name is None else name)


def infill_prompt(
    served: Served,
    prefix: Sequence[int],
    suffix: Sequence[int],
    *,
    prompt: Sequence[int] = (),
    extra: Sequence[Extra] = (),
) -> list[int]:
    """The tokens of a prompt for the gap between `prefix` and `suffix`; `prompt` is the beginning of what fills it.

    Three quarters of the room are the prefix's (its end), one quarter is the prompt's and the suffix's (its beginning);
    room is one batch, and at most three quarters of the context. Other files get what the context has besides, less two
    answers of the server's default length. The begin token, of models that want one, stands right before the gap's
    prompt, as llama-server has it: that is how the prompts began that the model was trained on.
    """
    fim = fim_tokens(served)
    room = min(served.n_batch, served.n_ctx * 3 // 4)
    n_suffix = max(0, room // 4 - (2 + len(prompt)))
    n_extra = max(0, served.n_ctx - room - 2 * max(served.generation.n_predict, 0))
    before = [fim.prefix, *_tail(prefix, 3 * (room // 4)), *prompt]
    after = [fim.suffix, *suffix[:n_suffix]]
    gap = [*after, *before] if served.generation.spm_infill else [*before, *after]
    bos = [served.tokenizer.bos] if served.tokenizer.add_bos else []
    files = _tail(_files(served, fim, extra), min(n_extra, max(0, served.n_ctx - len(gap) - 3)))
    return [*files, *bos, *gap, fim.middle]


def _tail(tokens: Sequence[int], n: int) -> Sequence[int]:
    return tokens[max(0, len(tokens) - n) :]


def _files(served: Served, fim: FimTokens, extra: Sequence[Extra]) -> list[int]:
    """Other files, each with its head, and the head of the file with the gap."""
    tokens: list[int] = []
    if fim.repo >= 0:
        tokens += [fim.repo, *plain_tokens(PROJECT, served)]
    for chunk in extra:
        if fim.separator >= 0:
            tokens += [fim.separator, *plain_tokens(chunk.filename + "\n", served)]
        else:
            tokens += plain_tokens(SNIPPET, served)
        tokens += plain_tokens(chunk.text, served)
    if fim.separator >= 0:
        tokens += [fim.separator, *plain_tokens(FILE, served)]
    return tokens


_SIDE = either(TEXT, listed(either(TEXT, TOKEN)))

ROUTES = (
    Completion(
        ("/infill",),
        decode,
        "Fill the gap between a prefix and a suffix (llama-server)",
        fields=(
            *CONSTRAINT_FIELDS,
            *TRIGGER_FIELDS,
            *PLAIN_FIELDS,
            Field("input_prefix", _SIDE, "the text before the gap", required=True),
            Field("input_suffix", _SIDE, "the text after the gap", required=True),
            Field("prompt", TEXT, "how the text in the gap begins; it is not repeated in the answer"),
            Field(
                "input_extra",
                listed({**record(text=TEXT, filename=TEXT), "required": ["text"]}),
                "parts of other files, the most important last",
            ),
        ),
        example={"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n\nprint(add(1, 2))\n", "n_predict": 32},
        result=either(RESULT, listed(RESULT)),
        chunk=CHUNK,
    ),
)
