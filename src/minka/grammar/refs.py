"""`$ref` within one schema document: JSON pointers, anchors, and the URIs that `$id` gives to its parts.

Nothing is ever loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from minka.errors import RequestError

_SUBSCHEMAS = frozenset(
    {"items", "additionalItems", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"}
    | {"not", "if", "then", "else", "contains"}
)
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})

_NO_PLACE = "http://schema.invalid/"
"""The URI of a document that does not say its own, so that relative ones can be joined to it."""


class Target(NamedTuple):
    """What a reference points at, where that is (a pointer such as `#/$defs/a`), and the URI that holds there."""

    pointer: str
    schema: object
    base: str


class Refs:
    """The references of one schema document."""

    def __init__(self, root: object) -> None:
        self._root = root
        self.base = self.base_of(root, _NO_PLACE)
        """The URI of the whole document."""
        self._resources = {self.base: Target("#", root, self.base), _NO_PLACE: Target("#", root, self.base)}
        self._anchors: dict[tuple[str, str], Target] = {}
        self._dynamic: dict[str, int] = {}
        self._is_read = False

    @property
    def is_one(self) -> bool:
        """Whether one URI holds everywhere in the document."""
        self._read()
        return len(self._resources) <= 2

    @staticmethod
    def base_of(schema: object, base: str) -> str:
        """The URI that holds inside of a schema which stands where `base` does."""
        own = _text(schema, "$id") or _text(schema, "id")
        if not own or own.startswith("#"):
            return base
        try:
            return urldefrag(urljoin(base, own) if "://" in base or own.startswith("urn:") else own).url
        except ValueError:
            return base

    def resolve(self, reference: str, where: str, base: str = "") -> Target:
        """The schema that `reference` names at a place where the URI `base` holds.

        Raises RequestError, which names the place, if it is none of this document's.
        """
        base = base or self.base
        try:
            url, fragment = urldefrag(
                urljoin(base, reference) if reference and reference[0] != "#" else base + reference
            )
        except ValueError:
            url, fragment = reference, ""
        if url != self.base:
            self._read()
        resource = self._resources.get(url)
        fragment = unquote(fragment)
        if resource is not None and fragment in {"", "/"}:
            return resource
        if resource is not None and fragment.startswith("/"):
            return self._at(resource, fragment[1:], reference, where)
        if resource is not None:
            self._read()
            found = self._anchors.get((url, fragment))
            if found is not None:
                return found
        raise RequestError(f'"$ref" at {where}: "{_short(reference)}" is not a part of this schema')

    def resolve_dynamic(self, reference: str, where: str, base: str = "") -> Target:
        """The same for `$dynamicRef` and `$recursiveRef`, where they can mean one place only.

        Raises RequestError where it could be several.
        """
        self._read()
        if reference == "#" and self.is_one:
            return self.resolve(reference, where, base)
        target = self.resolve(reference, where, base)
        name = _text(target.schema, "$dynamicAnchor")
        if name and reference.endswith(f"#{name}") and self._dynamic[name] > 1:
            raise RequestError(
                f'"$dynamicRef" at {where}: that several schemas have the "$dynamicAnchor" {_short(name)} is not '
                "supported"
            )
        return target

    def _at(self, resource: Target, pointer: str, reference: str, where: str) -> Target:
        value, path, base = resource.schema, resource.pointer, resource.base
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
            base = self.base_of(value, base)
        return Target(path, value, base)

    def _read(self) -> None:
        """Look for URIs and anchors wherever a schema can be, not in values such as those of `const`."""
        if self._is_read:
            return
        self._is_read = True
        open_schemas: list[tuple[object, str, str]] = [(self._root, "#", self.base)]
        while open_schemas:
            schema, path, around = open_schemas.pop()
            if not isinstance(schema, dict):
                continue
            base = self.base_of(schema, around)
            target = Target(path, schema, base)
            self._resources.setdefault(base, target)
            own = _text(schema, "$id")
            dynamic = _text(schema, "$dynamicAnchor")
            for name in (_text(schema, "$anchor"), dynamic, own[1:] if own.startswith("#") else ""):
                if name:
                    self._anchors.setdefault((base, name), target)
            if dynamic:
                self._dynamic[dynamic] = self._dynamic.get(dynamic, 0) + 1
            open_schemas += [(inner, place, base) for inner, place in children(schema, path)]


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
