"""llama.cpp's grammar language (GBNF), read into a tree and written as Lark.

GBNF is a grammar of characters, llguidance one of lexemes. So everything that is not recursive becomes one terminal: a
grammar without recursion is held exactly, and in a recursive one the lexemes are as long as they can be. Syntax:
grammars/README.md of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from minka.errors import RequestError
from minka.grammar.shortest import MAX_FIXED

MAX_REPEAT = 100_000
"""Repetitions of an item."""

MAX_RULES = 3_000
MAX_NESTING = 100
"""Parentheses inside of each other."""


@dataclass(frozen=True, slots=True)
class Text:
    """A literal."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a class, as a regular expression. `blank`: of nothing but spaces, tabs and line ends."""

    regex: str
    blank: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A token of the vocabulary: `<think>`, `<[42]>`, or any but one."""

    spelling: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Items one after the other; none is the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item at least and at most so often; `most` is None for any number."""

    item: Node
    least: int
    most: int | None


Node = Text | Chars | Name | Special | Chain | Choice | Repeat

_WORD = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX = {"x": 2, "u": 4, "U": 8}
_TOKEN = re.compile(r"<\[[0-9]{1,9}\]>|<[^<>\s]+>")
_COUNTS = re.compile(r"\{\s*([0-9]{1,9})\s*(?:(,)\s*([0-9]{1,9})?\s*)?\}")


class _Reader:
    """A recursive descent over the text; `_at` is where it stands."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._nesting = text, 0, 0

    def rules(self) -> dict[str, Node]:
        """All rules by name. Raises RequestError, which names the line."""
        rules: dict[str, Node] = {}
        self._space(newlines=True)
        while self._at < len(self._text):
            name = self._name()
            if name in rules:
                raise self._error(f'the rule "{name}" is there twice')
            self._space(newlines=False)
            if not self._text.startswith("::=", self._at):
                raise self._error('expected "::="')
            self._at += 3
            self._space(newlines=True)
            rules[name] = self._choice(nested=False)
            if self._peek() not in ("", "\n", "\r"):
                raise self._error("expected the end of the line")
            self._space(newlines=True)
            if len(rules) > MAX_RULES:
                raise RequestError(f"the grammar has more than {MAX_RULES} rules")
        return rules

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _error(self, message: str) -> RequestError:
        line = self._text.count("\n", 0, self._at) + 1
        near = self._text[self._at : self._at + 20].split("\n")[0]
        return RequestError(f'{message} in line {line}, at "{near}"')

    def _space(self, *, newlines: bool) -> None:
        blanks = " \t\r\n" if newlines else " \t"
        while char := self._peek():
            if char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif char in blanks:
                self._at += 1
            else:
                break

    def _name(self) -> str:
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise self._error("expected the name of a rule")
        self._at = found.end()
        return found[0]

    def _choice(self, *, nested: bool) -> Node:
        options = [self._sequence(nested=nested)]
        while self._peek() == "|":
            self._at += 1
            self._space(newlines=True)
            options.append(self._sequence(nested=nested))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, *, nested: bool) -> Node:
        items: list[Node] = []
        while char := self._peek():
            if char in "*+?{":
                if not items:
                    raise self._error("there is nothing to repeat")
                items[-1] = self._repeat(items[-1])
            elif (item := self._item(char)) is not None:
                items.append(item)
            else:
                break
            self._space(newlines=nested)
        return items[0] if len(items) == 1 else Chain(tuple(items))

    def _item(self, char: str) -> Node | None:
        match char:
            case '"':
                return self._literal()
            case "[":
                return self._chars()
            case "(":
                return self._group()
            case ".":
                self._at += 1
                return Chars("(?s:.)")
            case "<" | "!":
                return self._token()
        return Name(self._name()) if _WORD.match(char) else None

    def _literal(self) -> Node:
        self._at += 1
        chars: list[str] = []
        while (char := self._peek()) != '"':
            if not char:
                raise self._error("a string does not end")
            chars.append(self._char())
        self._at += 1
        return Text("".join(chars))

    def _chars(self) -> Node:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[str] = []
        blank = not negated
        while (char := self._peek()) != "]":
            if not char:
                raise self._error("a character class does not end")
            low = high = self._char()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._char()
                if high < low:
                    raise self._error("a range of characters is the wrong way round")
            blank = blank and low == high and low in " \t\r\n"
            ranges.append(_code(low) if low == high else f"{_code(low)}-{_code(high)}")
        if not ranges:
            raise self._error("a character class is empty")
        self._at += 1
        return Chars(f"[{'^' if negated else ''}{''.join(ranges)}]", blank)

    def _char(self) -> str:
        char = self._peek()
        self._at += 1
        if char != "\\":
            if not char:
                raise self._error("unexpected end")
            return char
        kind = self._peek()
        self._at += 1
        if kind in _HEX:
            digits = self._text[self._at : self._at + _HEX[kind]]
            if len(digits) != _HEX[kind] or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise self._error(f"expected {_HEX[kind]} hexadecimal digits")
            self._at += len(digits)
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self._error("there is no such character")
            return chr(code)
        if kind not in _ESCAPES or not kind:
            raise self._error("unknown escape")
        return _ESCAPES[kind]

    def _group(self) -> Node:
        self._at += 1
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise self._error("parentheses are nested too deeply")
        self._space(newlines=True)
        inner = self._choice(nested=True)
        if self._peek() != ")":
            raise self._error('expected ")"')
        self._at += 1
        self._nesting -= 1
        # A group is one item although it may have become a sequence: a repetition behind it means all of it.
        return inner

    def _token(self) -> Node:
        negated = self._peek() == "!"
        self._at += negated
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._error("expected a token such as <[42]>")
        self._at = found.end()
        return Special(found[0], negated)

    def _repeat(self, item: Node) -> Node:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if simple is not None:
            self._at += 1
            return Repeat(item, *simple)
        found = _COUNTS.match(self._text, self._at)
        if found is None:
            raise self._error("expected a repetition such as {2,5}")
        self._at = found.end()
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if max(least, most or 0) > MAX_REPEAT:
            raise self._error(f"an item is repeated more than {MAX_REPEAT} times")
        if most is not None and most < least:
            raise self._error("a repetition ends before it begins")
        return Repeat(item, least, most)


def _code(char: str) -> str:
    """A character in a class of a regular expression."""
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def parse(text: str) -> dict[str, Node]:
    """The rules of a grammar, only those that `root` needs, each after it was first needed.

    Raises RequestError for what is no grammar, for a rule that is missing, and if there is no `root`.
    """
    rules = _Reader(text).rules()
    if "root" not in rules:
        raise RequestError('the grammar has no rule "root"')
    needed = {"root": rules["root"]}
    open_names = ["root"]
    while open_names:
        for name in names_in(needed[open_names.pop()]):
            if name not in rules:
                raise RequestError(f'the rule "{name}" is used but not there')
            if name not in needed:
                needed[name] = rules[name]
                open_names.append(name)
    if shortest(needed) > MAX_FIXED:
        raise RequestError(f"the grammar matches no text of less than {MAX_FIXED} characters")
    return needed


def shortest(rules: dict[str, Node]) -> int:
    """Characters of the shortest text that `root` matches; a rule that leads to itself counts nothing there."""
    known: dict[str, int] = {}

    def of(node: Node) -> int:
        match node:
            case Text(text):
                return len(text)
            case Chars() | Special():
                return 1
            case Name(name):
                return known.get(name, 0)
            case Chain(items):
                return sum(map(of, items))
            case Choice(options):
                return min(map(of, options))
            case Repeat(item, least, _):
                return least * of(item)

    # Rules come after those that need them, mostly.
    for name in reversed(rules):
        known[name] = of(rules[name])
    return of(rules["root"])


def names_in(node: Node) -> list[str]:
    """The rules that a node mentions."""
    return [inner.name for inner in inside(node) if isinstance(inner, Name)]


def has_special(node: Node) -> bool:
    """Whether tokens of the vocabulary are named; such a rule cannot be a terminal."""
    return any(isinstance(inner, Special) for inner in inside(node))


def has_blanks(node: Node) -> bool:
    """Whether there is a run of blanks of any length."""
    return any(
        isinstance(inner, Repeat) and inner.most is None and isinstance(inner.item, Chars) and inner.item.blank
        for inner in inside(node)
    )


def inside(node: Node) -> Iterator[Node]:
    """A node with all that it is made of."""
    open_nodes: list[Node] = [node]
    while open_nodes:
        inner = open_nodes.pop()
        yield inner
        match inner:
            case Chain(items) | Choice(items):
                open_nodes += items
            case Repeat(item):
                open_nodes.append(item)
            case _:
                pass
