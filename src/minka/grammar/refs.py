"""`$ref` within one schema: JSON pointers, anchors, and the schema's own `$id` in front of them.

Nothing is ever loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from minka.errors import RequestError

_SUBSCHEMAS = frozenset({"items", "additionalItems", "additionalProperties", "propertyNames", "unevaluatedProperties"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})


class Target(NamedTuple):
    """What a reference points at, and where that is: a pointer such as `#/$defs/a`, with every part unescaped once."""

    pointer: str
    schema: object


class Refs:
    """The references of one schema document."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._id = _text(root, "$id") or _text(root, "id")
        self._anchors: dict[str, Target] | None = None

    def resolve(self, reference: str, where: str) -> Target:
        """The schema that `reference` names. Raises RequestError, which names the place, if it is not in this one."""
        rest = reference.removeprefix(self._id.rstrip("#")) if self._id else reference
        if rest in {"", "#", "#/"}:
            return Target("#", self._root)
        if rest.startswith("#/"):
            return self._at(unquote(rest[2:]), reference, where)
        if rest.startswith("#"):
            found = self._anchor(unquote(rest[1:]))
            if found is not None:
                return found
        raise RequestError(f'"$ref" at {where}: "{_short(reference)}" is not a part of this schema')

    def _at(self, pointer: str, reference: str, where: str) -> Target:
        value = self._root
        path = "#"
        for raw in pointer.split("/"):
            part = raw.replace("~1", "/").replace("~0", "~")
            match value:
                case dict() if part in value:
                    value = value[part]
                case list() if part.isdecimal() and len(part) < 9 and int(part) < len(value):
                    value = value[int(part)]
                case _:
                    raise RequestError(f'"$ref" at {where}: the schema has nothing at "{_short(reference)}"')
            path += "/" + raw
        return Target(path, value)

    def _anchor(self, name: str) -> Target | None:
        if self._anchors is None:
            self._anchors = {}
            self._collect(self._root, "#")
        return self._anchors.get(name)

    def _collect(self, root: object, pointer: str) -> None:
        """Look for anchors wherever a schema can be, not in values such as those of `const`."""
        assert self._anchors is not None
        open_schemas = [(root, pointer)]
        while open_schemas:
            schema, path = open_schemas.pop()
            if not isinstance(schema, dict):
                continue
            own = _text(schema, "$id")
            for name in (_text(schema, "$anchor"), own[1:] if own.startswith("#") else ""):
                if name:
                    self._anchors.setdefault(name, Target(path, schema))
            open_schemas += children(schema, path)


def children(schema: Mapping[str, object], path: str) -> list[tuple[object, str]]:
    """The schemas directly inside of a schema, each with its pointer."""
    found: list[tuple[object, str]] = []
    for key, value in schema.items():
        if key in _SUBSCHEMAS and isinstance(value, dict | bool):
            found.append((value, f"{path}/{key}"))
        elif key in _LISTS and isinstance(value, list):
            found += [(item, f"{path}/{key}/{index}") for index, item in enumerate(value)]
        elif key in _MAPS and isinstance(value, dict):
            found += [(item, f"{path}/{key}/{escape(name)}") for name, item in value.items()]
    return found


def escape(part: str) -> str:
    """A part of a JSON pointer."""
    return part.replace("~", "~0").replace("/", "~1")


def _text(schema: object, key: str) -> str:
    value = schema.get(key) if isinstance(schema, dict) else None
    return value if isinstance(value, str) else ""


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
