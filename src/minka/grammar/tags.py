"""Structural tags: free text in which tags enclose what has to match something, and other compositions of formats.

Two spellings are read: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}` (OpenAI, vLLM), and
`{"format": {...}}`, xgrammar's tree of formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from minka.errors import RequestError
from minka.grammar import bodies
from minka.grammar.marks import literal, mark, regex_of, until

MAX_DEPTH = 12
"""Formats inside of each other; Lark takes few parentheses."""

MAX_REPEAT = 1_000

JsonObject = Mapping[str, object]

_KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "const_string": frozenset({"value"}),
        "json_schema": frozenset({"json_schema", "style"}),
        "any_text": frozenset({"excludes"}),
        "grammar": frozenset({"grammar"}),
        "regex": frozenset({"pattern", "excludes"}),
        "sequence": frozenset({"elements"}),
        "or": frozenset({"elements"}),
        "optional": frozenset({"content"}),
        "plus": frozenset({"content"}),
        "star": frozenset({"content"}),
        "repeat": frozenset({"content", "min", "max"}),
        "tag": frozenset({"begin", "content", "end"}),
        "triggered_tags": frozenset({"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}),
        "tags_with_separator": frozenset({"tags", "separator", "at_least_one", "stop_after_first"}),
    }
)
"""What each type of format may say; anything else is refused."""


def structural_tag(value: object, *, param: str = "structural_tag") -> str:
    """The rule body of a structural tag. Raises RequestError, which names the place, for what is none."""
    reader = _Reader(param)
    whole = reader.members(value, param)
    if "structures" in whole:
        return reader.structures(whole, param)
    if "format" in whole:
        return reader.format(whole["format"], f"{param}.format", MAX_DEPTH)
    raise RequestError(f'"{param}" needs "structures" with "triggers", or "format"', param=param)


@dataclass(frozen=True, slots=True)
class _Tag:
    """A begin, the body between, and the ends of which one comes; none for a tag that needs no end."""

    begin: str
    content: str
    ends: tuple[str, ...]

    def body(self, begin: str) -> str:
        """The tag from `begin` on, which is the end of its own or all of it."""
        ends = " | ".join(mark(end) if end else '""' for end in self.ends)
        parts = (mark(begin) if begin else "", self.content, f"({ends})" if ends else "")
        return " ".join(part for part in parts if part)


class _Reader:
    """Reads formats. `path` is where one stands in the request."""

    def __init__(self, param: str) -> None:
        self._param = param
        self._kinds: Mapping[str, Callable[[JsonObject, str, int], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "any_text": lambda form, path, depth: self._free_text(form, path),
            "grammar": lambda form, path, depth: bodies.gbnf(self._text(form, "grammar", path), param=path),
            "regex": self._regex,
            "sequence": self._sequence,
            "optional": lambda form, path, depth: self._repeated(form, path, depth, "?"),
            "plus": lambda form, path, depth: self._repeated(form, path, depth, "+"),
            "star": lambda form, path, depth: self._repeated(form, path, depth, "*"),
            "repeat": lambda form, path, depth: self._repeated(form, path, depth, self._times(form, path)),
            "or": self._choice,
            "tag": lambda form, path, depth: self._wrapped(self._tag(form, path, depth)),
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._separated_tags,
        }

    def fail(self, path: str, message: str) -> RequestError:
        """An error at a place."""
        return RequestError(f'"{path}" {message}', param=self._param)

    def members(self, value: object, path: str) -> JsonObject:
        """The value, if it is an object."""
        if not isinstance(value, Mapping):
            raise self.fail(path, "must be an object")
        return value

    def structures(self, whole: JsonObject, path: str) -> str:
        """OpenAI's form: free text with tags in it."""
        tags = []
        for index, item in enumerate(self._list(whole, "structures", path)):
            at = f"{path}.structures[{index}]"
            tag = self.members(item, at)
            body = bodies.json_schema(tag.get("schema", True), param=f"{at}.schema")
            tags.append(_Tag(self._text(tag, "begin", at), body, (self._text(tag, "end", at),)))
        return self._triggered(tags, self._texts(whole, "triggers", path), path, least=0, once=False)

    def format(self, value: object, path: str, depth: int) -> str:
        """The body of any format."""
        form = self.members(value, path)
        if depth == 0:
            raise self.fail(path, f"is nested more than {MAX_DEPTH} levels deep")
        read = self._kinds.get(str(form.get("type")))
        if read is None:
            raise self.fail(f"{path}.type", f"must be one of {', '.join(sorted(self._kinds))}")
        unknown = form.keys() - _KEYS[str(form["type"])] - {"type"}
        if unknown:
            raise self.fail(f"{path}.{min(map(str, unknown))}", "is not supported")
        return read(form, path, depth - 1)

    def _excludes(self, form: JsonObject, path: str) -> tuple[str, ...]:
        """Texts that must not come anywhere in a format."""
        return tuple(self._texts(form, "excludes", path)) if form.get("excludes") else ()

    def _free_text(self, form: JsonObject, path: str) -> str:
        excludes = self._excludes(form, path)
        if not excludes:
            return bodies.ANY_TEXT
        found = "|".join(map(regex_of, excludes))
        return f"%lark {{\nstart: TEXT\nTEXT: {bodies.ANY_TEXT} & ~/(?s:.*)({found})(?s:.*)/\n}}"

    def _regex(self, form: JsonObject, path: str, depth: int) -> str:
        if form.get("excludes"):
            raise self.fail(f"{path}.excludes", "is not supported here")
        return bodies.regex(self._text(form, "pattern", path), param=path)

    def _repeated(self, form: JsonObject, path: str, depth: int, times: str) -> str:
        content = self.format(form.get("content"), f"{path}.content", depth)
        return f"%lark {{\nstart: one{times}\none: {content}\n}}"

    def _times(self, form: JsonObject, path: str) -> str:
        least, most = form.get("min", 0), form.get("max", -1)
        for key, count in (("min", least), ("max", most)):
            if isinstance(count, bool) or not isinstance(count, int) or not -1 <= count <= MAX_REPEAT:
                raise self.fail(f"{path}.{key}", f"must be an integer from 0 to {MAX_REPEAT}")
        assert isinstance(least, int)
        assert isinstance(most, int)
        if least < 0 or -1 < most < max(least, 1):
            raise self.fail(f"{path}.max", "must be -1 for any number, or at least 1 and no less than min")
        return f"{{{least},{most if most >= 0 else ''}}}"

    def _const_string(self, form: JsonObject, path: str, depth: int) -> str:
        return literal(self._text(form, "value", path))

    def _json_schema(self, form: JsonObject, path: str, depth: int) -> str:
        if form.get("style", "json") != "json":
            raise self.fail(f"{path}.style", 'must be "json"')
        return bodies.json_schema(form.get("json_schema", True), param=f"{path}.json_schema")

    def _sequence(self, form: JsonObject, path: str, depth: int) -> str:
        elements = self._list(form, "elements", path)
        parts = [self.format(part, f"{path}.elements[{i}]", depth) for i, part in enumerate(elements)]
        return self._wrapped(" ".join(parts))

    def _choice(self, form: JsonObject, path: str, depth: int) -> str:
        elements = self._list(form, "elements", path)
        parts = [self.format(part, f"{path}.elements[{i}]", depth) for i, part in enumerate(elements)]
        return self._wrapped(" | ".join(parts))

    def _tag(self, form: JsonObject, path: str, depth: int) -> _Tag:
        content = self.members(form.get("content"), f"{path}.content")
        end = form.get("end", "")
        ends = tuple(end) if isinstance(end, list) else (end,)
        if not all(isinstance(one, str) for one in ends):
            raise self.fail(f"{path}.end", "must be a string")
        texts = tuple(str(one) for one in ends)
        begin = self._text(form, "begin", path)
        if content.get("type") == "any_text" and all(texts) and not content.get("excludes"):
            return _Tag(begin, until(*texts), ())
        return _Tag(begin, self.format(content, f"{path}.content", depth), texts)

    @staticmethod
    def _wrapped(tag: _Tag | str) -> str:
        body = tag.body(tag.begin) if isinstance(tag, _Tag) else tag
        return f"%lark {{\nstart: {body}\n}}"

    def _triggered_tags(self, form: JsonObject, path: str, depth: int) -> str:
        if form.get("excludes"):
            raise self.fail(f"{path}.excludes", "is not supported here")
        tags = self._tags(form, path, depth)
        least, once = self._flag(form, "at_least_one", path), self._flag(form, "stop_after_first", path)
        return self._triggered(tags, self._texts(form, "triggers", path), path, least=int(least), once=once)

    def _triggered(self, tags: list[_Tag], triggers: list[str], path: str, *, least: int, once: bool) -> str:
        """Text up to a trigger, then the rest of a tag that begins with it; again and again, and text at last."""
        rules: list[str] = []
        for trigger in triggers:
            rests = [tag.body(tag.begin[len(trigger) :]) for tag in tags if tag.begin.startswith(trigger)]
            if not rests:
                raise self.fail(f"{path}.triggers", f'has "{trigger}", with which no tag begins')
            rules.append(f"tag{len(rules)}: before{len(rules)} rest{len(rules)}")
            rules.append(f"before{len(rules) - 1}: {until(trigger)}")
            rules.append(f"rest{len(rules) - 2}: {' | '.join(rests)}")
        for tag in tags:
            if not tag.begin.startswith(tuple(triggers)):
                raise self.fail(path, f'has a tag with the begin "{tag.begin}", which none of the triggers begins')
        names = " | ".join(f"tag{index}" for index in range(0, len(rules), 3))
        start = f"({names})" if once else f"({names}){'+' if least else '*'} TEXT?"
        if once and not least:
            start += " | TEXT"
        return "%lark {\n" + "\n".join([f"start: {start}", *rules, f"TEXT: {bodies.ANY_TEXT}"]) + "\n}"

    def _separated_tags(self, form: JsonObject, path: str, depth: int) -> str:
        """Tags and nothing else, with a text between them."""
        tags = self._tags(form, path, depth)
        separator = form.get("separator", "")
        if not isinstance(separator, str):
            raise self.fail(f"{path}.separator", "must be a string")
        one = "tag"
        more = "" if self._flag(form, "stop_after_first", path) else f" ({literal(separator)} {one})*"
        whole = f"{one}{more}"
        start = whole if self._flag(form, "at_least_one", path) else f"({whole})?"
        return f"%lark {{\nstart: {start}\ntag: {' | '.join(tag.body(tag.begin) for tag in tags)}\n}}"

    def _tags(self, form: JsonObject, path: str, depth: int) -> list[_Tag]:
        values = self._list(form, "tags", path)
        return [
            self._tag(self.members(value, f"{path}.tags[{i}]"), f"{path}.tags[{i}]", depth)
            for i, value in enumerate(values)
        ]

    def _list(self, form: JsonObject, key: str, path: str) -> list[object]:
        value = form.get(key)
        if not isinstance(value, list) or not value:
            raise self.fail(f"{path}.{key}", "must be a list, and not an empty one")
        return value

    def _texts(self, form: JsonObject, key: str, path: str) -> list[str]:
        values = self._list(form, key, path)
        if not all(isinstance(value, str) and value != "" for value in values):
            raise self.fail(f"{path}.{key}", "must be strings, none of them empty")
        return [str(value) for value in values]

    def _text(self, form: JsonObject, key: str, path: str) -> str:
        value = form.get(key)
        if not isinstance(value, str):
            raise self.fail(f"{path}.{key}", "must be a string")
        return value

    def _flag(self, form: JsonObject, key: str, path: str) -> bool:
        value = form.get(key, False)
        if not isinstance(value, bool):
            raise self.fail(f"{path}.{key}", "must be true or false")
        return value
