"""What every family has to be able to do, for families that are said by how they spell the same few answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minka.chat.formats.format import Ask, Calls, Format
from tests.chat.formats.samples import TOOLS, WEATHER, Sample, accepts, check, family, refuses

PARIS: tuple[str, object] = ("get_weather", {"city": "Paris"})
TIME: tuple[str, object] = ("get_time", {})
TEXT = 'Zürich, "Höngg"\n\\ 東京 🎈 it\'s'
NESTED: tuple[str, object] = ("run_code", {"code": TEXT, "options": {"deep": True}, "mode": "safe"})


@dataclass(frozen=True)
class Spelling:
    """How a family writes PARIS, PARIS and TIME, NESTED, and what it puts around reasoning and content.

    `source` is what its templates have in them, `templates` are real ones. `ids` are those that the calls say.
    `dropped` is text that no client sees, even where a call is none. `cut` is what closes an argument. `streams`: a
    call is told while it comes, so one that is cut off is a call.
    """

    name: str
    source: str
    one: str
    two: str
    nested: str
    templates: tuple[str, ...] = ()
    think: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    thinks: bool = True
    content: tuple[str, str] = ("", "")
    before_call: str = "\n"
    ids: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    cut: str = '"'
    streams: bool = True
    extra: Mapping[str, Sample] = field(default_factory=dict)

    @property
    def format(self) -> Format:
        """The family's format."""
        return family(self.source)

    def tell(self, text: str) -> str:
        """Content as it is written."""
        return f"{self.content[0]}{text}{self.content[1]}"

    def samples(self) -> dict[str, Sample]:
        """The answers that all families have in common, and those of this one."""
        hello = "Hello, wörld! 1 < 2"
        start, end = self.think
        known = {
            "content": Sample(self.tell(hello), content=hello),
            "call": Sample(self.one, calls=self._calls(PARIS)),
            "content and call": Sample(
                f"{self.tell(hello)}{self.before_call}{self.one}", hello, calls=self._calls(PARIS)
            ),
            "two calls": Sample(self.two, calls=self._calls(PARIS, TIME)),
            "nested arguments": Sample(self.nested, calls=self._calls(NESTED)),
            "unknown tool": Sample(
                self.one.replace("get_weather", "get_news"),
                content=self._seen(self.one).replace("get_weather", "get_news"),
                accepted=False,
            ),
            "cut off": self._cut_off(self.one[: self.one.index("Paris") + 2], '{"city": "Pa'),
            "cut off at the end": self._cut_off(self.one[: self.one.index("Paris") + 5] + self.cut, '{"city": "Paris"'),
            "no tools": Sample(self.one, content=self._seen(self.one), ask=Ask()),
        }
        if self.thinks:
            opened = Ask(TOOLS, Calls.AUTO, thinks=True, prefill=start)
            known |= {
                "reasoning": Sample(f"{start}Hm.{end}{self.tell(hello)}", hello, "Hm."),
                "reasoning and call": Sample(f"{start}Hm.{end}{self.one}", "", "Hm.", self._calls(PARIS)),
                "reasoning that the prompt opened": Sample(
                    f"Hm.{end}{self.one}", "", "Hm.", self._calls(PARIS), ask=opened
                ),
                "reasoning that never ends": Sample(f"{start}Hm", reasoning="Hm", accepted=False),
            }
        return {**known, **self.extra}

    def _cut_off(self, raw: str, arguments: str) -> Sample:
        if self.streams:
            return Sample(raw, cut=arguments, accepted=False)
        return Sample(raw, content=raw, accepted=False)

    def _seen(self, text: str) -> str:
        for part in self.dropped:
            text = text.replace(part, "")
        return text

    def _calls(self, *calls: tuple[str, object]) -> list[tuple[str, object] | tuple[str, object, str]]:
        if not self.ids:
            return list(calls)
        return [(*call, id) for call, id in zip(calls, self.ids, strict=False)]

    def check(self, name: str) -> None:
        """The sample of this name is read as it says, and the grammar knows it."""
        check(self.format, self.samples()[name])

    def check_grammar(self) -> None:
        """Calls that a tool's schema does not allow are refused, and what tool_choice says is kept to."""
        required, one_call = Ask(TOOLS, Calls.REQUIRED), Ask(TOOLS, Calls.REQUIRED, parallel=False)
        assert accepts(self.format, required, self.one)
        assert accepts(self.format, one_call, self.one)
        assert accepts(self.format, Ask((WEATHER,), Calls.REQUIRED), self.one)
        wrong = [
            self.one.replace("city", "town"),
            self.one.replace("get_weather", "get_news"),
            self.one.replace("get_weather", "get_time"),
            self.nested.replace("true", "7"),
            self.nested.replace("safe", "wild"),
        ]
        refuses(self.format, *wrong, self.tell("Hello"), ask=required)
        refuses(self.format, *wrong, ask=Ask(TOOLS, Calls.AUTO))
        refuses(self.format, self.two, ask=one_call)
        refuses(self.format, self.two, ask=Ask((WEATHER,), Calls.REQUIRED))
        content = Ask(TOOLS, Calls.AUTO, content='%json {"type": "integer"}')
        assert accepts(self.format, content, self.tell("42"))
        assert accepts(self.format, content, self.one)
        refuses(self.format, self.tell("Hello"), ask=content)
