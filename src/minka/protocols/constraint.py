"""What a request wants its text to match, in every spelling that clients use: OpenAI's, llama-server's, vLLM's.

Exactly one may be given. All of them become a Lark rule body; what it is compiled to is checked before any token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from minka.errors import NotSupportedError, RequestError
from minka.grammar import bodies
from minka.grammar.compiler import Grammars
from minka.grammar.lazy import lazy
from minka.grammar.tags import structural_tag
from minka.params import json_type
from minka.protocols.schema import FLAG, TEXT, Field, Schema, either, listed, record, word
from minka.protocols.triggers import decode_triggers
from minka.types import Constraint, Tokenizer

JsonObject = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Content:
    """What the text has to match: a rule body, and the field that asks for it. An empty body: any text will do."""

    body: str = ""
    field: str = ""

    @property
    def is_schema(self) -> bool:
        """Whether it is a shape of JSON rather than a grammar: that goes together with tools."""
        return self.field in {"response_format", "json_schema", "guided_json"} or ".json" in self.field


def decode_content(body: JsonObject, default: Content | None = None) -> Content | None:
    """What the request asks for, None for nothing. A server's `default` holds unless the request says something itself.

    Raises RequestError for two constraints, for one that is broken, and for what a grammar cannot hold.
    """
    _whitespace(body)
    found = [
        (name, value, read) for name, read in _READERS.items() if (value := body.get(name)) is not None and value != ""
    ]
    found += _structured_outputs(body)
    contents = [(name, content) for name, value, read in found if (content := read(value, name, body)) is not None]
    if len(contents) > 1:
        names = " and ".join(f'"{name}"' for name, _ in contents[:2])
        raise RequestError(f"{names} cannot both be given: a text has one constraint", param=contents[1][0])
    if contents:
        return Content(contents[0][1], contents[0][0])
    return None if found or body.get("grammar") == "" else default


def default_content(grammar: str, schema: str) -> Content | None:
    """The server's own, of a GBNF grammar or a schema as text. Raises RequestError as `decode_content` does."""
    given = {"--grammar": grammar, "--json-schema": schema}
    if grammar and schema:
        raise RequestError("--grammar and --json-schema exclude each other")
    body = {"grammar": grammar, "json_schema": _parsed(schema, "--json-schema") if schema else None}
    return decode_content(body) if any(given.values()) else None


def decode_constraint(body: JsonObject, content: Content | None, tokenizer: Tokenizer) -> Constraint | None:
    """The constraint of a request that has no reasoning and no tools: the content's, begun late if it says so."""
    triggers = decode_triggers(body, tokenizer)
    if content is None or not content.body:
        return None
    source = bodies.source(content.body)
    return Constraint(source if triggers is None else lazy(source, triggers))


def check(constraint: Constraint | None, grammars: Grammars | None, content: Content | None) -> None:
    """Compile a constraint, so that what is wrong with it is said before any token. Blocks for as long as that takes.

    Raises RequestError that names the field of the content, and NotSupportedError where nothing can be constrained.
    """
    if constraint is None:
        return
    if grammars is None:
        raise NotSupportedError("this server cannot constrain what is written")
    grammars.compile(constraint, param=content.field if content is not None and content.field else "tools")


def own_constraint(content: Content | None, grammars: Grammars | None) -> Constraint | None:
    """The compiled constraint of a text that no request asks for. Raises RequestError as `check` does."""
    if content is None or not content.body:
        return None
    constraint = Constraint(bodies.source(content.body))
    check(constraint, grammars, content)
    return constraint


Read = Callable[[object, str, JsonObject], str | None]
"""Reads the value of a field of some name; None if it asks for nothing."""


def _schema(value: object, name: str, body: JsonObject, *, strict: bool = False) -> str:
    if not isinstance(value, Mapping | bool):
        raise RequestError(f'"{name}" must be a JSON schema, but is {json_type(value)}', param=name)
    # llama-server reads the empty schema as any object.
    schema = value if value != {} else {"type": "object"}
    return bodies.json_schema(schema, param=name, strict=strict, whitespace=_whitespace(body))


def _whitespace(body: JsonObject) -> str | None:
    options = body.get("structured_outputs")
    pattern = body.get("guided_whitespace_pattern")
    if pattern is None and isinstance(options, Mapping):
        pattern = options.get("whitespace_pattern")
    if pattern is not None and not isinstance(pattern, str):
        raise RequestError('"guided_whitespace_pattern" must be a string', param="guided_whitespace_pattern")
    return pattern


def _schema_text(value: object, name: str, body: JsonObject) -> str:
    """A schema that may be given as text, as vLLM takes it."""
    return _schema(_parsed(value, name), name, body)


def _parsed(value: object, name: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        parsed: object = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f'"{name}" is no JSON: {error}', param=name) from None
    return parsed


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f'"{name}" must be a string, but is {json_type(value)}', param=name)
    return value


def _grammar(value: object, name: str, _body: JsonObject) -> str:
    """llama.cpp's language, or Lark if the text says so by its first word or by having no `::=`."""
    text = _text(value, name)
    if text.lstrip().startswith("%llguidance") or ("::=" not in text and "start" in text):
        return bodies.lark(text, param=name)
    return bodies.gbnf(text, param=name)


def _lark(value: object, name: str, _body: JsonObject) -> str:
    return bodies.lark(_text(value, name), param=name)


def _regex(value: object, name: str, _body: JsonObject) -> str:
    return bodies.regex(_text(value, name), param=name)


def _choice(value: object, name: str, _body: JsonObject) -> str:
    if not isinstance(value, list) or not all(isinstance(option, str) for option in value):
        raise RequestError(f'"{name}" must be a list of strings', param=name)
    return bodies.choice(value, param=name)


def _json_object(value: object, name: str, body: JsonObject) -> str | None:
    if not isinstance(value, bool):
        raise RequestError(f'"{name}" must be true or false', param=name)
    return bodies.json_object(whitespace=_whitespace(body)) if value else None


def _tags(value: object, name: str, _body: JsonObject) -> str:
    return structural_tag(_parsed(value, name), param=name)


def _response_format(value: object, name: str, body: JsonObject) -> str | None:
    if not isinstance(value, Mapping):
        raise RequestError(f'"{name}" must be an object, but is {json_type(value)}', param=name)
    match kind := value.get("type"):
        case "text":
            return None
        case "json_object":
            schema = value.get("schema")
            if schema is None:
                return bodies.json_object(whitespace=_whitespace(body))
            return _schema(schema, f"{name}.schema", body)
        case "json_schema":
            return _wrapped_schema(value, name, body)
        case "structural_tag":
            return structural_tag(value, param=name)
        case "regex" | "grammar" | "lark" | "choice":
            return _READERS[kind](value.get(kind, value.get("pattern")), f"{name}.{kind}", body)
    raise RequestError(
        f'"{name}.type" must be "text", "json_object", "json_schema", "structural_tag", "regex", "choice", "grammar" '
        'or "lark"',
        param=f"{name}.type",
    )


def _wrapped_schema(value: JsonObject, name: str, body: JsonObject) -> str:
    """OpenAI's nesting `json_schema.schema`, or the schema right in the format."""
    wrapper = value.get("json_schema")
    if wrapper is None:
        return _schema(value.get("schema", {}), f"{name}.schema", body, strict=_strict(value, name))
    if not isinstance(wrapper, Mapping):
        raise RequestError(f'"{name}.json_schema" must be an object', param=f"{name}.json_schema")
    path = f"{name}.json_schema"
    return _schema(wrapper.get("schema", {}), f"{path}.schema", body, strict=_strict(wrapper, path))


def _strict(value: JsonObject, name: str) -> bool:
    strict = value.get("strict")
    if not isinstance(strict, bool | None):
        raise RequestError(f'"{name}.strict" must be true or false', param=f"{name}.strict")
    return bool(strict)


_READERS: Mapping[str, Read] = {
    "response_format": _response_format,
    "json_schema": _schema,
    "grammar": _grammar,
    "lark": _lark,
    "regex": _regex,
    "choice": _choice,
    "structural_tag": _tags,
    "guided_json": _schema_text,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
}
_STRUCTURED: Mapping[str, Read] = {
    "json": _schema_text,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _tags,
}
_STRUCTURED_OPTIONS = frozenset(
    {"whitespace_pattern", "disable_any_whitespace", "disable_fallback", "disable_additional_properties"}
)


def _structured_outputs(body: JsonObject) -> list[tuple[str, object, Read]]:
    value = body.get("structured_outputs")
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise RequestError('"structured_outputs" must be an object', param="structured_outputs")
    unknown = value.keys() - _STRUCTURED.keys() - _STRUCTURED_OPTIONS
    if unknown:
        name = f"structured_outputs.{min(unknown)}"
        raise RequestError(f'"{name}" is unknown', param=name)
    return [
        (f"structured_outputs.{name}", value[name], read)
        for name, read in _STRUCTURED.items()
        if value.get(name) is not None
    ]


_OBJECT: Schema = {"type": "object"}
_JSON_SCHEMA: Schema = either(_OBJECT, FLAG)
CONSTRAINT_FIELDS = (
    Field(
        "response_format",
        {
            **record(
                type=word("text", "json_object", "json_schema", "structural_tag", "regex", "choice", "grammar", "lark"),
                json_schema=record(name=TEXT, schema=_JSON_SCHEMA, strict=FLAG),
                schema=_JSON_SCHEMA,
            ),
            "required": ["type"],
        },
        "what the text has to be: JSON, JSON that matches a schema, or one of the fields below by its name",
    ),
    Field("json_schema", _JSON_SCHEMA, "the text has to be JSON that matches this schema"),
    Field("grammar", TEXT, "the text has to match this grammar in llama.cpp's language (GBNF)"),
    Field("lark", TEXT, "the text has to match this grammar in llguidance's dialect of Lark"),
    Field("regex", TEXT, "the whole text has to match this regular expression"),
    Field("choice", listed(TEXT, minItems=1), "the text has to be one of these"),
    Field("structural_tag", either(_OBJECT, TEXT), "free text in which tags enclose what has to match a schema"),
    Field("guided_json", either(_OBJECT, TEXT), "vLLM's name of json_schema"),
    Field("guided_regex", TEXT, "vLLM's name of regex"),
    Field("guided_choice", listed(TEXT), "vLLM's name of choice"),
    Field("guided_grammar", TEXT, "vLLM's name of grammar"),
    Field("guided_whitespace_pattern", TEXT, "a regular expression for the white space between the parts of JSON"),
    Field(
        "structured_outputs",
        _OBJECT,
        "vLLM's object with one of json, json_object, regex, choice, grammar, structural_tag",
    ),
)
