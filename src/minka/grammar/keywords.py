"""JSON Schema's vocabulary as this package sees it: what is enforced, what is a note to people, what is refused.

A table and no logic. Keywords that are in none of the lists are annotations too, as JSON Schema says.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

ANNOTATIONS = frozenset(
    {
        "$schema",
        "$comment",
        "$vocabulary",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "$defs",
        "definitions",
        "$id",
        "id",
        "$anchor",
        "$dynamicAnchor",
        "$recursiveAnchor",
    }
)
"""Keywords without any effect on what is valid. Definitions count when something refers to them."""

COMBINATORS = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "$recursiveRef"})
"""Keywords that bring in other schemas for the same value."""

BY_TYPE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
        "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
        "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "unevaluatedItems"}),
        "object": frozenset(
            {
                "properties",
                "additionalProperties",
                "patternProperties",
                "required",
                "minProperties",
                "maxProperties",
                "propertyNames",
                "unevaluatedProperties",
            }
        ),
    }
)
"""Keywords that only say something about values of one type."""

CONDITIONS = frozenset(
    {"not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"}
    | {"dependentRequired", "dependentSchemas", "dependencies"}
)
"""Keywords that are written with others before anything else is done, see `conditions`."""

UNSUPPORTED = frozenset({"extends", "disallow", "divisibleBy"})
"""Keywords that decide what is valid and that no grammar here can hold: a schema with one of them is refused."""

ENFORCED = frozenset({"type", "enum", "const"}).union(COMBINATORS, CONDITIONS, *BY_TYPE.values())

KNOWN = ANNOTATIONS | ENFORCED | UNSUPPORTED


def fold(keyword: str) -> str:
    """A keyword without the differences that a typing error makes: case, underscores and dashes."""
    return keyword.lower().replace("_", "").replace("-", "")


MEANT: Mapping[str, str] = MappingProxyType({fold(word): word for word in sorted(ENFORCED | UNSUPPORTED)})
"""What somebody meant who wrote `max_length`: by the folded spelling."""
