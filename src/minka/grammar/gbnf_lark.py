"""A GBNF tree as Lark source: terminals for what is not recursive, rules for the rest.

See `gbnf` for why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minka.errors import RequestError
from minka.grammar.gbnf import (
    Chain,
    Chars,
    Choice,
    Name,
    Node,
    Repeat,
    Special,
    Text,
    has_blanks,
    has_special,
    names_in,
    parse,
)
from minka.grammar.marks import literal, mark

MAX_DEFINITIONS = 5_000
"""Rules and terminals of the Lark source."""


def gbnf_to_lark(text: str) -> str:
    """Lark source with the same language. Raises RequestError for a grammar that cannot be read."""
    return _Writer(parse(text)).source()


class _Writer:
    """Writes definitions; each group gets its own, since Lark's parser takes few parentheses inside of each other."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._opaque: Callable[[Node], bool] = has_special
        self._plain = _regular(rules, has_special)
        if "root" not in self._plain:
            # A lexeme takes as many blanks as it can, so none would be left for a rule that needs one behind it.
            self._opaque = lambda node: has_special(node) or has_blanks(node)
            self._plain = _regular(rules, self._opaque)
        numbers = {name: number for number, name in enumerate(rules)}
        self._names = {name: f"{'T' if name in self._plain else 'r'}{number}" for name, number in numbers.items()}
        self._lines: dict[str, str] = {}
        self._known: dict[str, str] = {}

    def source(self) -> str:
        """The whole source; the start rule comes first."""
        lines = [f"start: {self._names['root']}"]
        for name, node in self._rules.items():
            body = self._terminal(node) if name in self._plain else self._rule(node)
            self._lines[self._names[name]] = body
        return "\n".join([*lines, *(f"{name}: {body}" for name, body in self._lines.items())]) + "\n"

    def _define(self, kind: str, body: str) -> str:
        """The name of a definition with this body."""
        name = self._known.get(kind + body)
        if name is None:
            if len(self._lines) > MAX_DEFINITIONS:
                raise RequestError("the grammar is too large")
            name = self._known[kind + body] = f"{kind}{len(self._known)}"
            self._lines[name] = body
        return name

    # -- terminals -----------------------------------------------------------------------------------------------------

    def _terminal(self, node: Node) -> str:
        """The body of a terminal."""
        match node:
            case Choice(options):
                return " | ".join(map(self._terminal_item, options))
            case Chain(items):
                return " ".join(map(self._terminal_item, items)) or '""'
            case _:
                return self._terminal_item(node)

    def _terminal_item(self, node: Node) -> str:
        match node:
            case Text(text):
                return literal(text)
            case Chars(regex):
                return f"/{regex}/"
            case Name(name):
                return self._names[name]
            case Repeat(item, least, most) if not isinstance(item, Repeat):
                return self._terminal_item(item) + _times(least, most)
            case Repeat(item, least, most):
                return self._define("TG", self._terminal(item)) + _times(least, most)
            case _:
                return self._define("TG", self._terminal(node))

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _rule(self, node: Node) -> str:
        """The body of a rule."""
        if self._is_plain(node):
            return self._lexeme(node)
        match node:
            case Choice(options):
                plain = tuple(option for option in options if self._is_plain(option))
                # Options that are terminals are one lexeme, so that none can hide another.
                bodies = [self._lexeme(Choice(plain) if len(plain) > 1 else plain[0])] if plain else []
                return " | ".join([*bodies, *(self._rule_sequence(o) for o in options if not self._is_plain(o))])
            case _:
                return self._rule_sequence(node)

    def _rule_sequence(self, node: Node) -> str:
        """A sequence, in which neighbours that are terminals become one lexeme."""
        items = node.items if isinstance(node, Chain) else (node,)
        parts: list[str] = []
        run: list[Node] = []
        for item in items:
            if self._is_plain(item):
                run.append(item)
                continue
            parts += self._run(run)
            run = []
            parts.append(self._rule_item(item))
        return " ".join([*parts, *self._run(run)])

    def _run(self, run: list[Node]) -> list[str]:
        return [self._lexeme(Chain(tuple(run)) if len(run) > 1 else run[0])] if run else []

    def _rule_item(self, node: Node) -> str:
        match node:
            case Name(name):
                return self._names[name]
            case Special(spelling, negated):
                return _token(spelling, negated=negated)
            case Repeat(item, least, most) if not isinstance(item, Repeat):
                return self._rule_item(item) + _times(least, most)
            case Repeat(item, least, most):
                return self._define("rg", self._rule(item)) + _times(least, most)
            case _:
                return self._define("rg", self._rule(node))

    def _lexeme(self, node: Node) -> str:
        """A terminal inside of a rule. The empty text is none."""
        return self._define("TL", self._terminal(node))

    def _is_plain(self, node: Node) -> bool:
        return not self._opaque(node) and all(name in self._plain for name in names_in(node))


def _times(least: int, most: int | None) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    return known.get((least, most), f"{{{least},{'' if most is None else most}}}")


def _token(spelling: str, *, negated: bool) -> str:
    if spelling.startswith("<["):
        return f"<[{'^' if negated else ''}{spelling[2:-2]}]>"
    if negated:
        raise RequestError(f"write the id of the token in !{spelling}, as in !<[42]>")
    return mark(spelling)


def _regular(rules: Mapping[str, Node], opaque: Callable[[Node], bool]) -> frozenset[str]:
    """The rules that can be terminals: nothing in them is opaque, and they lead only to other such rules."""
    waiting = {name: len(set(names_in(node))) for name, node in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, node in rules.items():
        for other in set(names_in(node)):
            users[other].append(name)
    open_names = [name for name, count in waiting.items() if not count and not opaque(rules[name])]
    plain: set[str] = set()
    while open_names:
        name = open_names.pop()
        plain.add(name)
        for user in users[name]:
            waiting[user] -= 1
            if not waiting[user] and not opaque(rules[user]):
                open_names.append(user)
    return frozenset(plain)
