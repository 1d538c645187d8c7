"""The command line of the parameter table: an argparse parser from rows, and values from flags, environment, defaults.

The rules are llama-server's (llama.cpp, common/arg.cpp): `_` in a long flag is `-`, the last use wins, a flag beats the
environment, no abbreviations, and the word after a flag that takes a value is the value, whatever it looks like.
Beyond those, `--flag=value` works too. Knows nothing of what the parameters do.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from minka.errors import UsageError
from minka.params import (
    GROUPS,
    INT32_MAX,
    UNSUPPORTED,
    BadValueError,
    GenerationParams,
    Kind,
    Row,
    Syntax,
    check_items,
    limit,
    number,
    rows,
    samplers_from_letters,
    samplers_from_names,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    D = TypeVar("D", bound=DataclassInstance)
else:
    D = TypeVar("D")

TRUE_WORDS = ("on", "enabled", "true", "1")
FALSE_WORDS = ("off", "disabled", "false", "0")
_MISSING = object()
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"-\.?[0-9].*")
_BIAS = re.compile(r"\s*([0-9]+)\s*([+-])\s*(\S+)\s*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))")


# -- text to values


def parse_bool(text: str) -> bool:
    """The bool of an env variable; raises BadValueError."""
    word = text.strip().lower()
    if word not in TRUE_WORDS + FALSE_WORDS:
        raise BadValueError(f"must be one of {', '.join(TRUE_WORDS + FALSE_WORDS)}, but got {text!r}")
    return word in TRUE_WORDS


def _parse_int(row: Row, text: str) -> int:
    named = dict(row.param.named)
    if text in named:
        return named[text]
    if not _INTEGER.fullmatch(text) or len(text) > 30:
        words = "".join(f", {word}" for word in named)
        raise BadValueError(f"must be an integer{words}, but got {text!r}")
    return int(limit(row, int(text)))


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValueError(f"must be a number, but got {text!r}") from None


def _parse_inverse(row: Row, text: str) -> float:
    value = _parse_float(text)
    if not 0 < value < inf:
        raise BadValueError(f"must be greater than 0, but got {text!r}")
    return float(limit(row, 1 / value))


def _parse_string(row: Row, text: str, syntax: Syntax) -> str:
    if syntax is Syntax.SWITCH and text.lower() in TRUE_WORDS + FALSE_WORDS:
        return "on" if parse_bool(text) else "off"
    if syntax is Syntax.JSON_OBJECT:
        try:
            valid = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError) as error:
            raise BadValueError(f"must be a JSON object: {error}") from None
        if not valid:
            raise BadValueError(f"must be a JSON object, but got {text!r}")
    if row.param.choices and text not in row.param.choices:
        raise BadValueError(f"must be one of {', '.join(row.param.choices)}, but got {text!r}")
    return text


def _parse_list(text: str) -> tuple[str, ...]:
    """Items between commas; an item with a comma in it is put in double quotes."""
    try:
        items = next(csv.reader([text]), [])
    except csv.Error as error:
        raise BadValueError(f"must be a list separated by commas: {error}") from None
    return tuple(item.strip() for item in items if item.strip())


def _parse_strings(text: str, syntax: Syntax) -> tuple[str, ...]:
    match syntax:
        case Syntax.SAMPLERS:
            return samplers_from_names([name for name in text.split(";") if name])
        case Syntax.SAMPLER_CHARS:
            return samplers_from_letters(text)
        case Syntax.ONE:
            return (text,)
        case _:
            return _parse_list(text)


def _parse_bias(row: Row, text: str) -> tuple[tuple[int, float], ...]:
    match = _BIAS.fullmatch(text)
    if match is None or len(match[1]) > 10 or int(match[1]) > INT32_MAX:
        raise BadValueError(f"must be a token id with a bias such as 15043+1 or 15043-inf, but got {text!r}")
    bias = _parse_float(match[3]) * (-1 if match[2] == "-" else 1)
    return ((int(match[1]), bias if bias == -inf else float(limit(row, bias))),)


def _parse_files(row: Row, text: str, syntax: Syntax) -> tuple[tuple[str, float], ...]:
    """Files between commas, each with its factor behind a colon if the syntax says so."""
    if syntax is not Syntax.SCALED:
        return tuple((name, 1.0) for name in _parse_list(text))
    found = []
    for item in _parse_list(text):
        name, colon, scale = item.rpartition(":")
        if not name or not colon:
            raise BadValueError(f"must be FILE:SCALE, as in x.gguf:0.5, but got {item!r}")
        found.append((name, float(limit(row, _parse_float(scale)))))
    return tuple(found)


def parse_text(row: Row, text: str, syntax: Syntax | None = None) -> object:
    """The value that a text means for a row that is no bool.

    `syntax` replaces the row's own, for a second spelling. Raises BadValueError, without the name of the flag.
    """
    syntax = syntax or row.param.syntax
    match row.type:
        case Kind.INT:
            return _parse_int(row, text)
        case Kind.FLOAT:
            return _parse_inverse(row, text) if syntax is Syntax.INVERSE else float(limit(row, _parse_float(text)))
        case Kind.STR:
            return _parse_string(row, text, syntax)
        case Kind.FLOATS:
            numbers = (float(limit(row, _parse_float(item))) for item in re.split("[,/]", text))
            return check_items(row, tuple(numbers))
        case Kind.BIASES:
            return _parse_bias(row, text)
        case Kind.INTS:
            return check_items(row, tuple(_parse_int(row, item) for item in text.split(",")))
        case Kind.FILES:
            return _parse_files(row, text, syntax)
        case _:
            return () if text == row.param.none else check_items(row, _parse_strings(text, syntax))


def unescape(text: str) -> str:
    """Text with \\n, \\r, \\t, \\', \\", \\\\ and \\xHH (a byte of UTF-8) processed; other backslashes stay."""

    def replace(match: re.Match[str]) -> str:
        if match[2]:
            return _ESCAPES[match[2]]
        byte = int(match[1], 16)
        return chr(byte if byte < 128 else 0xDC00 + byte)  # a byte that is no ASCII passes as a surrogate

    return _ESCAPE.sub(replace, text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# -- the parser


def _dest(cls: type, row: Row) -> str:
    return f"{cls.__name__}.{row.name}"


class _Set(argparse.Action):
    """Store what a row's flag means; only what was given is in the namespace."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, *, row: Row, syntax: Syntax, metavar: str, help: str
    ) -> None:
        nargs = 0 if row.type is Kind.BOOL else row.param.n_values if row.param.n_values > 1 else None
        words = tuple(metavar.split()) if nargs and nargs > 1 else metavar
        super().__init__(option_strings, dest, nargs, default=argparse.SUPPRESS, metavar=words, help=help)
        self.row = row
        self.syntax = syntax

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if self.row.type is Kind.BOOL:
            value: object = option_string not in self.row.param.negated
        else:
            text = ",".join(values) if isinstance(values, list) else str(values)
            try:
                value = parse_text(self.row, text, self.syntax)
                if self.row.param.repeat and value:
                    value = check_items(self.row, (*getattr(namespace, self.dest, ()), *cast("tuple[object]", value)))
            except BadValueError as error:
                raise UsageError(f"{option_string} {error}") from None
        setattr(namespace, self.dest, value)


def default_text(row: Row) -> str:
    """A row's default as it is written on a command line; empty if there is none."""
    words = {value: word for word, value in row.param.named}
    match row.default:
        case None | "" | ():
            return ""
        case bool():
            return "on" if row.default else "off"
        case int() if row.default in words:
            return words[row.default]
        case tuple():
            separator = ";" if row.param.syntax is Syntax.SAMPLERS else ","
            return separator.join(json.dumps(item)[1:-1] for item in row.default)
        case float():
            return number(row.default)
        case _:
            return str(row.default)


def _help(row: Row) -> str:
    listed = row.type is Kind.STR and row.param.choices and row.param.syntax is Syntax.PLAIN
    notes = [f"one of {', '.join(row.param.choices)}"] if listed else []
    notes += [f"default: {default_text(row)}"] if default_text(row) else []
    notes += [f"env: {row.param.env}"] if row.param.env else []
    notes += ["Minka only"] if row.param.own else []
    return (row.param.doc + (f" ({'; '.join(notes)})" if notes else "")).replace("%", "%%")


def add_parameters(
    parser: argparse.ArgumentParser,
    *classes: type[DataclassInstance],
    omit: Collection[str] = (),
) -> None:
    """Declare the flags of some dataclasses of the table, but for attributes in `omit`; `resolve` reads them."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for cls in classes:
        for row in rows(cls):
            if not row.param.flags or row.name in omit:
                continue
            title = row.param.topic or GROUPS[cls]
            group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
            _add_row(group, _dest(cls, row), row)


def _add_row(group: argparse._ArgumentGroup, dest: str, row: Row) -> None:
    param = row.param
    metavar = param.metavar or "N"
    group.add_argument(
        *param.flags,
        *param.negated,
        dest=dest,
        action=_Set,
        row=row,
        syntax=param.syntax,
        metavar=metavar,
        help=_help(row),
    )
    for also in param.also:
        doc = also.doc + (f" (env: {also.env})" if also.env else "")
        group.add_argument(
            *also.flags, dest=dest, action=_Set, row=row, syntax=also.syntax, metavar=also.metavar, help=doc
        )


class _Formatter(argparse.HelpFormatter):
    """Help as llama-server writes it: all spellings, the value once, no usage of a hundred flags."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=38)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, action.dest.upper())}"


class Parser(argparse.ArgumentParser):
    """An argparse parser with llama-server's rules, which raises UsageError where argparse would end the process."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{"formatter_class": _Formatter, "allow_abbrev": False, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        hint = f"; `{self.prog} --help` explains them" if message.startswith("the following arguments") else ""
        raise UsageError(message + hint)

    def format_usage(self) -> str:
        """One line: the command, [options], its positional arguments."""
        return f"usage: {self._usage()}\n"

    def format_help(self) -> str:
        """The help, with the short usage."""
        self.usage = self._usage().replace("%", "%%")
        return super().format_help()

    def _usage(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(None, [action for action in self._actions if not action.option_strings], [], "")
        words = formatter.format_help().split()
        return " ".join([self.prog, "[options]", *words[len(self.prog.split()) :]])

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse's, but a word without a flag raises UsageError, which says where it belongs."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            flag = "-m" if rest[0].lower().endswith(".gguf") else "-p"
            use = f"; did you mean {flag} {rest[0]!r}?" if flag in self._option_string_actions else ""
            raise UsageError(f"{rest[0]!r} belongs to no flag{use}")
        return found

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's, by the rules of this module; an unknown flag raises UsageError."""
        words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._join_values(words), namespace)

    def _join_values(self, words: list[str]) -> list[str]:
        """The words with every flag and its value as one, `--flag=value`, which argparse never takes for a flag."""
        joined: list[str] = []
        nested = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
        position = 0
        while position < len(words):
            word = words[position]
            position += 1
            if word == "--" or (nested and not word.startswith("-")):
                return [*joined, word, *words[position:]]
            flag, separator, value = self._flag(word)
            action = self._option_string_actions.get(flag)
            if action is None:
                joined.append(word)
                continue
            if action.nargs in (None, 1) and not separator:
                separator, value = "=", words[position] if position < len(words) else "--"
                position += 1
            if value == "--":  # argparse drops this word, wherever it is
                raise UsageError(f"{flag} needs a value")
            joined.append(f"{flag}{separator}{value}")
        return joined

    def _flag(self, word: str) -> tuple[str, str, str]:
        """The flag of a word, and what follows a `=` in it; raises UsageError if it looks like a flag and is none."""
        for flag, separator, value in ((word, "", ""), word.partition("=")):
            spelling = flag.replace("_", "-") if flag.startswith("--") else flag
            if spelling in self._option_string_actions:
                return spelling, separator, value
        if not word.startswith("-") or word == "-" or _NUMBER.fullmatch(word):
            return "", "", ""
        flag = word.partition("=")[0]
        raise UsageError(f"there is no flag {flag}{self._suggestion(flag)}")

    def _suggestion(self, word: str) -> str:
        shown = self._option_string_actions.items()
        known = [flag for flag, action in shown if action.help is not argparse.SUPPRESS]
        alike = [flag for flag in known if flag.startswith("--") == word.startswith("--")]
        near = [flag for flag in known if flag == f"-{word}"] or [flag for flag in alike if flag.startswith(word)]
        near = near or difflib.get_close_matches(word, alike, 1)
        return f"; did you mean {near[0]}?" if near else ""


# -- values of a command line


def _from_env(row: Row, env: Mapping[str, str]) -> object:
    """The value that the environment gives a row, or _MISSING. An empty variable is as good as none."""
    name = row.param.env
    if name and row.param.negated and env.get(name.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)):
        return False
    sources = [(name, row.param.syntax), *((also.env, also.syntax) for also in row.param.also)]
    for source, syntax in sources:
        text = env.get(source, "") if source else ""
        if text:
            try:
                return parse_bool(text) if row.type is Kind.BOOL else parse_text(row, text, syntax)
            except BadValueError as error:
                raise UsageError(f"the environment variable {source} {error}") from None
    return _MISSING


def resolve(namespace: argparse.Namespace, cls: type[D], env: Mapping[str, str]) -> D:
    """The values of a dataclass of the table: from the command line, else the environment, else the defaults.

    Raises UsageError for a bad environment variable.
    """
    escape = getattr(namespace, f"{GenerationParams.__name__}.escape", True)
    values: dict[str, object] = {}
    for row in rows(cls):
        value = getattr(namespace, _dest(cls, row), _MISSING)
        if value is _MISSING:
            value = _from_env(row, env)
        elif escape and row.param.escapes:
            value = tuple(unescape(item) for item in cast("tuple[str, ...]", value))
        if value is not _MISSING:
            values[row.name] = value
    return cls(**values)


def foreign_env(env: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each variable of llama-server that is set and asks for what Minka does not support."""
    found = []
    for foreign in UNSUPPORTED:
        text = env.get(foreign.env, "").strip() if foreign.env else ""
        if text and text not in foreign.off and not (foreign.values == 0 and text.lower() in FALSE_WORDS):
            found.append(
                f"the environment variable {foreign.env} has no effect: "
                f"{foreign.flags[0]} is a llama.cpp flag that {foreign.note}"
            )
    return tuple(found)
