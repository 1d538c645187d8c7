"""MiniCPM5: `<function name="f"><param name="a">1</param></function>`, with CDATA around text that has a `<` in it."""

from __future__ import annotations

from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.calls import TaggedCall, expect_loosely
from minka.chat.formats.format import Family, Format
from minka.chat.formats.reader import Reader, Steps
from minka.chat.formats.reasoning import think_tags
from minka.chat.formats.schema import TEXT, Argument
from minka.chat.formats.shape import Shape
from minka.chat.formats.tagged import ArgumentTags
from minka.grammar.marks import literal, mark

CDATA, CDATA_END = "<![CDATA[", "]]>"


@dataclass(frozen=True, slots=True)
class CdataTags(ArgumentTags):
    """Arguments whose text may stand in CDATA, and must if it begins with `<`."""

    def body(self, argument: Argument, rules: lark.Rules) -> str:
        """See ArgumentTags."""
        # The beginning of the tag may be a special token.
        return lark.sequence(mark(self.open), lark.text(argument.name), self._value(argument, rules))

    def _value(self, argument: Argument, rules: lark.Rules) -> str:
        plain = ArgumentTags._value(self, argument, rules)
        if plain != lark.sequence(literal(self.between), rules.until(self.close)):
            return plain
        bare = lark.either((lark.sequence("/[^<]/", rules.until(self.close)), mark(self.close)))
        quoted = lark.sequence(literal(CDATA), rules.until(CDATA_END + self.close))
        return lark.sequence(literal(self.between), lark.either((bare, quoted)))

    def write(self, name: str, value: object) -> str:
        """See ArgumentTags."""
        is_quoted = isinstance(value, str) and "<" in value
        return ArgumentTags.write(self, name, f"{CDATA}{value}{CDATA_END}" if is_quoted else value)

    def _read_value(self, reader: Reader, types: frozenset[str]) -> Steps[None]:
        if not (yield from reader.match(CDATA)):
            yield from ArgumentTags._read_value(self, reader, types)
            return
        yield from ArgumentTags("", "", CDATA_END)._read_value(reader, TEXT)
        yield from expect_loosely(reader, self.close)


def _make(source: str) -> Format | None:
    if '<function name="' not in source or '<param name="' not in source:
        return None
    return Shape(
        "minicpm5",
        TaggedCall("", '">', "</function>", CdataTags('<param name="', '">', "</param>")),
        call_open='<function name="',
        separator="\n",
        more_marks=("<function", "<param"),
        reasoning=think_tags(source),
    )


FAMILY = Family(rank=30, make=_make)
