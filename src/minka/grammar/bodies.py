"""Rule bodies: every kind of constraint as a piece of Lark, which can stand alone or be a part of a larger grammar.

A body can be put wherever Lark takes an expression: `source(f'"<call>" {json_schema(s)} "</call>"')`. None of them
brings names of its own. Those that come from a request raise RequestError, which names `param`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache

from llguidance import regex_to_lark

from minka.errors import RequestError
from minka.grammar.gbnf_lark import gbnf_to_lark
from minka.grammar.limits import FOREIGN, MAX_SOURCE
from minka.grammar.marks import literal, mark, until
from minka.grammar.plain import is_plain
from minka.grammar.problems import embed
from minka.grammar.schema import narrow
from minka.grammar.shortest import MAX_FIXED, of_regex

MAX_CHOICES = 10_000
MAX_CHOICE = 10_000
"""Characters of one option."""

MAX_REGEX = 10_000
"""Characters."""

_BRACES = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\])+/|[{}]')
"""Strings, comments and regular expressions of Lark, in which braces mean nothing, and braces that mean something."""

ANY_TEXT = "/(?s:.*)/"
"""The body that matches any text, but no special token."""

COMPACT = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # Without \u, a property cannot come a second time in another spelling.
    "json_allowed_escapes": 'nrbtf\\"',
}
"""JSON on one line, as Python writes it: what most models were trained on, and most of it is forced."""


def source(body: str, rules: str = "") -> str:
    """A whole grammar that consists of a body, with the rules that it mentions."""
    return f"start: {body}\n{rules}"


def json_schema(
    schema: object, *, param: str = "json_schema", strict: bool = False, whitespace: str | None = None
) -> str:
    """JSON that matches a schema. `whitespace`: a regex for what may stand between its parts, one line if None.

    Properties come in the schema's order. `strict`: a `format` that is not known is an error.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (RecursionError, UnicodeEncodeError, ValueError):
        raise RequestError(f'"{param}" is no JSON value that can be used as a schema', param=param) from None
    if size > MAX_SOURCE:
        raise RequestError(f'"{param}" is larger than {MAX_SOURCE} bytes', param=param)
    return _json_body(text, param, strict, whitespace)


@lru_cache(maxsize=64)
def _json_body(text: str, param: str, strict: bool, whitespace: str | None) -> str:
    """The same for equal texts; the order of properties is a part of it."""
    narrowed = narrow(json.loads(text), param=param, strict=strict)
    options = COMPACT if whitespace is None else _with_whitespace(whitespace, param)
    guarded = {} if whitespace is None and is_plain(narrowed) else {"title": "guarded"}
    return embed({"$comment": param, **guarded, **narrowed, "x-guidance": options})


def _with_whitespace(pattern: str, param: str) -> dict[str, object]:
    if len(pattern) > MAX_REGEX:
        raise RequestError(f"the whitespace pattern of {param} is too long", param=param)
    return {
        "whitespace_pattern": pattern,
        "item_separator": ",",
        "key_separator": ":",
        "json_allowed_escapes": COMPACT["json_allowed_escapes"],
    }


def json_object(*, whitespace: str | None = None) -> str:
    """Any JSON object."""
    return json_schema({"type": "object"}, whitespace=whitespace)


def gbnf(text: str, *, param: str = "grammar") -> str:
    """A grammar in llama.cpp's language."""
    _check_size(text, param)
    try:
        lark_source = gbnf_to_lark(text)
    except RequestError as error:
        raise RequestError(f'"{param}": {error.message}', param=param) from None
    return _nested(lark_source)


def lark(text: str, *, param: str = "lark") -> str:
    """A grammar in llguidance's dialect of Lark; its first rule is `start`."""
    _check_size(text, param)
    _check_braces(text, param)
    return _nested(text if text.endswith("\n") else text + "\n")


def regex(pattern: str, *, param: str = "regex") -> str:
    """Text of which all matches a regular expression (Rust's syntax). Anchors at its ends are allowed."""
    if len(pattern) > MAX_REGEX:
        raise RequestError(f'"{param}" is longer than {MAX_REGEX} characters', param=param)
    if of_regex(pattern) > MAX_FIXED:
        raise RequestError(f'"{param}" matches no text of less than {MAX_FIXED} characters', param=param)
    if _ends_escaped(pattern):
        raise RequestError(f'"{param}" ends in a backslash', param=param)
    whole = pattern.removeprefix("^")
    if whole.endswith("$") and not _ends_escaped(whole[:-1]):
        whole = whole[:-1]
    if not whole:
        return '""'
    inside = regex_to_lark(whole, use_ascii="")
    for taken in ("<mark:", "<until:"):
        inside = inside.replace(taken, "\\x3c" + taken[1:])
    return _nested(f"start: /{inside}/\n")


def _ends_escaped(pattern: str) -> bool:
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def choice(options: Sequence[str], *, param: str = "choice") -> str:
    """One of several texts."""
    if not options or not all(options):
        raise RequestError(f'"{param}" must be a list of strings, none of them empty', param=param)
    if len(options) > MAX_CHOICES or sum(map(len, options)) > MAX_SOURCE:
        raise RequestError(f'"{param}" has too many options', param=param)
    if max(map(len, options)) > MAX_CHOICE:
        raise RequestError(f'"{param}" has an option of more than {MAX_CHOICE} characters', param=param)
    return _nested(f"start: CHOICE\nCHOICE: {' | '.join(map(literal, options))}\n")


def _nested(text: str) -> str:
    """A grammar with names of its own as a body."""
    return f"%lark {{\n{FOREIGN}{text}}}"


def _check_braces(text: str, param: str) -> None:
    """A brace that closes what the text did not open would reach around it, into the grammar that it is put into."""
    depth = 0
    for found in _BRACES.finditer(text):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth < 0:
            raise RequestError(f'"{param}" has a "}}" without a "{{" in front of it', param=param)
    if depth:
        raise RequestError(f'"{param}" has a "{{" without a "}}" behind it', param=param)


def _check_size(text: str, param: str) -> None:
    if len(text) > MAX_SOURCE:
        raise RequestError(f'"{param}" is larger than {MAX_SOURCE} characters', param=param)


__all__ = [
    "ANY_TEXT",
    "choice",
    "gbnf",
    "json_object",
    "json_schema",
    "lark",
    "literal",
    "mark",
    "regex",
    "source",
    "until",
]
