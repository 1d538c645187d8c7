"""Embeddings as OpenAI's `/v1/embeddings` and as llama-server's `/embeddings`, which gives a list of vectors a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.errors import RequestError, UnsupportedError
from minka.params import EmbeddingParams, GenerationParams, json_type, parse_fields
from minka.protocols.body import JsonObject, decode_mixed
from minka.protocols.route import Embedding
from minka.protocols.schema import COUNT, NUMBER, TEXT, TOKEN, Field, between, either, listed, record, word
from minka.protocols.served import EmbeddingFacts, Served
from minka.protocols.vectors import encoded, facts, normalized
from minka.types import EmbedJob, Pooling, Priority, Tokenizer, Vectors

MAX_INPUTS = 8192
"""Texts in one request."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the answer looks like: `norm` of the vectors, how many of their numbers (0: all), as base64 or as a list."""

    norm: int
    n_dimensions: int = 0
    base64: bool = False


def decode_openai(body: JsonObject, served: Served) -> OpenAiTexts | NativeTexts:
    """OpenAI's request; with `content` in place of `input` it gets llama-server's own answer, as there."""
    embedding = facts(served)
    if embedding.pooling is Pooling.NONE:
        raise RequestError("Pooling type 'none' is not OAI compatible. Please use a different pooling type")
    if body.get("input") is None and body.get("content") is not None:
        return decode_native(body, served)
    shape = _shape(body, embedding)
    return OpenAiTexts(embed_job(body, _inputs(body, served), served), shape, model_name(body, served))


def decode_native(body: JsonObject, served: Served) -> NativeTexts:
    """llama-server's request."""
    embedding = facts(served)
    shape = _shape(body, embedding)
    if embedding.pooling is Pooling.NONE:
        shape = Shape(-1, shape.n_dimensions, shape.base64)
    return NativeTexts(embed_job(body, _inputs(body, served), served), shape)


def model_name(body: JsonObject, served: Served) -> str:
    """The model's name as the request says it, which llama-server repeats here; else the real one."""
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise RequestError(f'"model" must be a string, but is {json_type(name)}', param="model")
    return name or served.model.name


def embed_job(body: JsonObject, inputs: Sequence[Sequence[int]], served: Served) -> EmbedJob:
    """The texts, with what requests of all kinds can say of their turn and their time."""
    said = {name: body.get(name) for name in ("priority", "timeout_ms")}
    generation = parse_fields(GenerationParams, said, served.generation)
    return EmbedJob(tuple(map(tuple, inputs)), Priority(generation.priority), timeout_ms=generation.timeout_ms)


class OpenAiTexts:
    """Implements `vectors.Texts` for `/v1/embeddings`."""

    def __init__(self, job: EmbedJob, shape: Shape, model: str) -> None:
        self.job = job
        self._shape = shape
        self._model = model

    def answer(self, vectors: Sequence[Vectors]) -> object:
        """See Texts."""
        n_tokens = sum(map(len, self.job.inputs))
        return {
            "object": "list",
            "data": [self._entry(index, _cut(own, self._shape)) for index, own in enumerate(vectors)],
            "model": self._model,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }

    def _entry(self, index: int, vectors: Vectors) -> dict[str, object]:
        entry: dict[str, object] = {"object": "embedding", "index": index}
        if self._shape.base64:
            return entry | {"embedding": encoded(vectors[0]), "encoding_format": "base64"}
        return entry | {"embedding": vectors[0].tolist()}


class NativeTexts:
    """Implements `vectors.Texts` for `/embeddings`: one vector a text, or one a token without pooling."""

    def __init__(self, job: EmbedJob, shape: Shape) -> None:
        self.job = job
        self._shape = shape

    def answer(self, vectors: Sequence[Vectors]) -> object:
        """See Texts."""
        return [{"index": index, "embedding": self._rows(own)} for index, own in enumerate(vectors)]

    def _rows(self, vectors: Vectors) -> object:
        rows = _cut(vectors, self._shape)
        return [encoded(row) for row in rows] if self._shape.base64 else rows.tolist()


def _cut(vectors: Vectors, shape: Shape) -> Vectors:
    return normalized(vectors[:, : shape.n_dimensions or None], shape.norm)


# -- request -----------------------------------------------------------------------------------------------------------


def _shape(body: JsonObject, embedding: EmbeddingFacts) -> Shape:
    if embedding.pooling is Pooling.RANK:
        raise RequestError("this server ranks documents (--pooling rank) and makes no embeddings; use /v1/rerank")
    form = body.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise RequestError(f'"encoding_format" must be "float" or "base64", but is {form!r}', param="encoding_format")
    n = body.get("dimensions")
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= embedding.width):
        raise RequestError(
            f'"dimensions" must be 1 to {embedding.width}, the width of this model\'s vectors', param="dimensions"
        )
    params = parse_fields(EmbeddingParams, body, EmbeddingParams(embd_normalize=embedding.normalize))
    return Shape(params.embd_normalize, n if isinstance(n, int) else 0, form == "base64")


def _inputs(body: JsonObject, served: Served) -> list[list[int]]:
    name = "input" if body.get("input") is not None else "content"
    value = body.get(name)
    match value:
        case None:
            raise RequestError('"input" or "content" must be provided', param="input")
        case []:
            raise RequestError(f'"{name}" must not be empty', param=name)
        case list() if not _is_ids(value):
            if len(value) > MAX_INPUTS:
                raise RequestError(f'"{name}" has {len(value)} texts, at most {MAX_INPUTS} are allowed', param=name)
            inputs = [_tokens(item, served.tokenizer, f"{name}[{index}]") for index, item in enumerate(value)]
        case _:
            inputs = [_tokens(value, served.tokenizer, name)]
    if not all(inputs):
        raise RequestError("Input content cannot be empty", param=name)
    return inputs


def _is_ids(items: list[object]) -> bool:
    """Whether a list is one text: token ids, perhaps mixed with strings. A list of strings is many texts."""
    return any(isinstance(item, int) and not isinstance(item, bool) for item in items) and all(
        isinstance(item, int | str) and not isinstance(item, bool) for item in items
    )


def _tokens(value: object, tokenizer: Tokenizer, path: str) -> list[int]:
    match value:
        case {"content": content}:
            return tokenizer.tokenize(_text(content, f"{path}.content"), add_special=True, parse_special=True)
        case {"prompt_string": _, "multimodal_data": [_, *_]}:
            raise UnsupportedError("this model has no multimodal support", param=f"{path}.multimodal_data")
        case {"prompt_string": str(text)}:
            return tokenizer.tokenize(text, add_special=True, parse_special=True)
        case str():
            return tokenizer.tokenize(value, add_special=True, parse_special=True)
        case list():
            return decode_mixed(value, tokenizer, add_special=True, parse_special=True, path=path)
        case _:
            raise RequestError(
                f'"{path}" must be a text, token ids, or an object with prompt_string or content, but is '
                f"{json_type(value)}",
                param=path,
            )


def _text(parts: object, path: str) -> str:
    """The text of OpenAI's content parts."""
    if not isinstance(parts, list):
        raise RequestError(f'"{path}" must be a list of parts, but is {json_type(parts)}', param=path)
    return "".join([_part(part, f"{path}[{index}]") for index, part in enumerate(parts)])


def _part(part: object, path: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case _ if kind in ("image_url", "input_audio", "input_video"):
            raise UnsupportedError("this model has no multimodal support", param=path)
        case _:
            raise RequestError(f'"{path}" must be a part of the type "text" with a string "text"', param=path)


# -- routes ------------------------------------------------------------------------------------------------------------

_PARTS = record(content=listed(record(type=word("text"), text=TEXT)))
_ONE = either(TEXT, listed(either(TOKEN, TEXT)), record(prompt_string=TEXT), _PARTS)
_INPUT: dict[str, object] = {**either(_ONE, listed(_ONE, maxItems=MAX_INPUTS)), "title": "a text, or a list of texts"}
_WHAT = "a text, token ids, a mix of both, an object with prompt_string, content parts, or a list of these"
_FIELDS = (
    Field("encoding_format", word("float", "base64"), "base64 is of little-endian float32; float if not given"),
    Field("dimensions", {"type": "integer", "minimum": 1}, "keep so many numbers of a vector, and normalise it again"),
    Field("embd_normalize", between(-1, 2**31 - 1), "the norm: 2 Euclidean, 1 taxicab, p, 0 largest 32760, -1 none"),
    Field("priority", between(-1, 1), "order in the queue"),
    Field("timeout_ms", COUNT, "fail if it takes longer; -1 for never"),
)
_VECTOR = either(listed(NUMBER), TEXT)

ROUTES = (
    Embedding(
        ("/v1/embeddings",),
        decode_openai,
        "Vectors of texts",
        fields=(
            Field("input", _INPUT, _WHAT, required=True),
            Field("model", TEXT, "repeated in the answer"),
            *_FIELDS,
        ),
        example={"input": ["a cat on a mat", "a dog on a log"]},
        result=record(
            object=word("list"),
            data=listed(record(object=word("embedding"), index=COUNT, embedding=_VECTOR)),
            model=TEXT,
            usage=record(prompt_tokens=COUNT, total_tokens=COUNT),
        ),
    ),
    Embedding(
        ("/embeddings", "/embedding"),
        decode_native,
        "Vectors of texts, as llama-server's own API gives them",
        fields=(Field("input", _INPUT, f"{_WHAT}; its other name is content", required=True), *_FIELDS),
        example={"input": "a cat on a mat"},
        result=listed(record(index=COUNT, embedding=listed(_VECTOR))),
    ),
)
