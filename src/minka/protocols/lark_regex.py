"""A Lark grammar that describes a regular language, as one regular expression.

So the text of a free-form tool can be described where it stands: in a JSON string, of which a schema can only give a
pattern. Rules that contain themselves are no regular language and are refused. Lark's grammar of grammars is in its
documentation (lark-parser.readthedocs.io, "Grammar Reference").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Never

from minka.errors import RequestError, UnsupportedError

MAX_LENGTH = 100_000
"""Characters of the expression: each use of a rule is a copy of it."""

_COMMON: Mapping[str, str] = MappingProxyType(
    {
        "DIGIT": "[0-9]",
        "HEXDIGIT": "[0-9a-fA-F]",
        "INT": "[0-9]+",
        "SIGNED_INT": "[+-]?[0-9]+",
        "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
        "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
        "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
        "LCASE_LETTER": "[a-z]",
        "UCASE_LETTER": "[A-Z]",
        "LETTER": "[a-zA-Z]",
        "WORD": "[a-zA-Z]+",
        "CNAME": "[a-zA-Z_][a-zA-Z_0-9]*",
        "WS_INLINE": r"[ \t]+",
        "WS": r"[ \t\f\r\n]+",
        "CR": r"\r",
        "LF": r"\n",
        "NEWLINE": r"(?:\r?\n)+",
    }
)

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+)
      | (?P<string>"(?:[^"\\\n]|\\.)*"i?)
      | (?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)
      | (?P<name>[!?]?_?[a-zA-Z][a-zA-Z0-9_]*)
      | (?P<number>[0-9]+)
      | (?P<range>\.\.)
      | (?P<arrow>->)
      | (?P<sign>[()\[\]|?*+~:.,%{}])
    """,
    re.VERBOSE,
)
_HEAD = re.compile(r"\s*[!?]?(_?[a-zA-Z][a-zA-Z0-9_]*)\s*(?:\.[0-9]+)?\s*:")
_IMPORT = re.compile(r"\s*%import\s+common\.([A-Z_]+)(?:\s*->\s*([A-Z_]+))?\s*")


def lark_regex(source: str, param: str) -> str:
    """The expression for a grammar's rule `start`.

    Raises RequestError for a grammar that is broken, UnsupportedError for one that is recursive or needs what is not
    known here; `param` is the field that it came in.
    """
    return _Grammar(source, param).expression("start")


class _Grammar:
    def __init__(self, source: str, param: str) -> None:
        self._param = param
        self._rules: dict[str, str] = {}
        self._made: dict[str, str] = {}
        self._open: list[str] = []
        name = ""
        for line in _lines(source):
            if found := _IMPORT.fullmatch(line):
                common = found[1]
                if common not in _COMMON:
                    self._refuse(f"common.{common} is not known")
                self._made[found[2] or common] = _COMMON[common]
            elif line.lstrip().startswith("%"):
                self._refuse(f"{line.split()[0]} is not supported")
            elif head := _HEAD.match(line):
                name = head[1]
                self._rules[name] = line[head.end() :]
            elif name:
                self._rules[name] += " " + line
            else:
                self._fail(f"{line.strip()[:60]!r} is no rule")

    def expression(self, name: str) -> str:
        """A rule's expression."""
        if name in self._made:
            return self._made[name]
        if name not in self._rules:
            self._fail(f"there is no rule {name!r}")
        if name in self._open:
            self._refuse(f"the rule {name!r} contains itself")
        self._open.append(name)
        text = _Alternatives(self, self._rules[name]).read()
        self._open.pop()
        if len(text) > MAX_LENGTH:
            self._refuse("it is too large")
        self._made[name] = text
        return text

    def _fail(self, what: str) -> Never:
        raise RequestError(f"{self._param}: the grammar is broken: {what}", param=self._param)

    def _refuse(self, what: str) -> Never:
        raise UnsupportedError(f"{self._param}: the grammar cannot be enforced: {what}", param=self._param)

    fail = _fail
    refuse = _refuse


def _lines(source: str) -> Iterator[str]:
    for line in source.splitlines():
        text = line.split("//")[0] if line.lstrip().startswith("//") else line
        if text.strip():
            yield text


class _Alternatives:
    """Reads the right side of a rule."""

    def __init__(self, grammar: _Grammar, text: str) -> None:
        self._grammar = grammar
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                if text.startswith("//", at):
                    break
                grammar.fail(f"cannot read {text[at : at + 40]!r}")
            at = found.end()
            if found.lastgroup != "space":
                self._tokens.append((str(found.lastgroup), found[0]))
        self._at = 0

    def read(self) -> str:
        text = self._choice()
        if self._at < len(self._tokens):
            self._grammar.fail(f"cannot read {self._tokens[self._at][1]!r}")
        return text

    def _peek(self, offset: int = 0) -> str:
        at = self._at + offset
        return self._tokens[at][1] if at < len(self._tokens) else ""

    def _choice(self) -> str:
        choices = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            choices.append(self._sequence())
        return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._at < len(self._tokens) and self._peek() not in ("|", ")", "]"):
            if self._peek() == "->":
                self._at += 2
                continue
            parts.append(self._repeated(self._item()))
        return "".join(parts)

    def _repeated(self, item: str) -> str:
        match self._peek():
            case "?" | "*" | "+" as sign:
                self._at += 1
                return f"(?:{item}){sign}"
            case "~":
                low, high = self._peek(1), self._peek(1)
                self._at += 2
                if self._peek() == "..":
                    high = self._peek(1)
                    self._at += 2
                if not (low.isdecimal() and high.isdecimal()):
                    self._grammar.fail("~ needs a number")
                return f"(?:{item}){{{low},{high}}}"
            case _:
                return item

    def _item(self) -> str:
        kind, text = self._tokens[self._at]
        self._at += 1
        match kind:
            case "string":
                return self._string(text)
            case "regex":
                pattern, _, flags = text[1:].rpartition("/")
                return f"(?:{_flagged(pattern, flags, self._grammar)})"
            case "name":
                return f"(?:{self._grammar.expression(text.lstrip('!?'))})"
            case "sign" if text in "([":
                inner = self._choice()
                if self._peek() != (")" if text == "(" else "]"):
                    self._grammar.fail(f"a {text} is not closed")
                self._at += 1
                return f"(?:{inner})" + ("?" if text == "[" else "")
        return self._grammar.fail(f"cannot read {text!r}")

    def _string(self, text: str) -> str:
        value = _unescaped(text.removesuffix("i")[1:-1])
        if self._peek() == "..":
            end = _unescaped(self._peek(1)[1:-1])
            self._at += 2
            return f"[{re.escape(value)}-{re.escape(end)}]"
        literal = re.escape(value)
        return f"(?i:{literal})" if text.endswith("i") else literal


def _flagged(pattern: str, flags: str, grammar: _Grammar) -> str:
    pattern = pattern.replace("\\/", "/")
    try:
        re.compile(pattern)
    except re.error as error:
        grammar.fail(f"/{pattern}/: {error}")
    if unknown := set(flags) - set("imsu"):
        grammar.refuse(f"the flags {''.join(sorted(unknown))} of an expression are not supported")
    kept = "".join(flag for flag in "ims" if flag in flags)
    return f"(?{kept}:{pattern})" if kept else pattern


def _unescaped(text: str) -> str:
    escapes = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", '"': '"', "\\": "\\", "'": "'", "/": "/"}
    return re.sub(r"\\(.)", lambda found: escapes.get(found[1], "\\" + found[1]), text)
