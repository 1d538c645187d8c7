"""One Jinja source, compiled once and rendered as Hugging Face transformers and llama.cpp render it.

Whatever goes wrong inside a template comes out as a RequestError with the template's own words: most often it is the
template that refuses the conversation. It knows variables and text, nothing of messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import CodeType

from jinja2 import Template, TemplateError, TemplateSyntaxError

from minka.chat.budget import LimitError, Limits
from minka.chat.sandbox import Sandbox, metered
from minka.errors import ModelError, RequestError

MAX_SOURCE_CHARS = 1 << 20
MAX_INDENT = 32

Clock = Callable[[], datetime]


def local_time() -> datetime:
    """Now, in the machine's time zone."""
    return datetime.now().astimezone()


class RaisedError(TemplateError):
    """A template called `raise_exception`."""


def raise_exception(message: object) -> None:
    """What templates call to refuse a conversation."""
    raise RaisedError(str(message))


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, not escaped for HTML as jinja2's own filter does, and with its keys in the order they came."""
    if (indent if isinstance(indent, int) else len(indent or "")) > MAX_INDENT or len("".join(separators or ())) > 8:
        raise LimitError(f"it asks for JSON with an indent of more than {MAX_INDENT} characters")
    pair = (separators[0], separators[1]) if separators else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)


class Program:
    """A template source. Compiling waits for the first use; rendering is thread-safe and shares nothing."""

    def __init__(self, source: str, clock: Clock = local_time) -> None:
        self.source = source
        self._clock = clock

    def check(self) -> None:
        """Compile now. Raises ModelError if the source is no valid template."""
        _ = self._code

    def render(self, variables: Mapping[str, object], limits: Limits = Limits()) -> str:  # noqa: B008  (frozen)
        """The text for these variables, which are plain JSON values.

        They are copied, so nothing a template does to them outlives the call. Raises RequestError with the template's
        message, or saying why it was stopped; ModelError if the source is no valid template.
        """
        code = self._code
        sandbox = self._sandbox(limits)
        template = Template.from_code(sandbox, code, sandbox.make_globals(None))
        try:
            text = template.render(copied(dict(variables)))
            text.encode()
        except RaisedError as error:
            raise RequestError(error.message or "the chat template refuses this conversation") from None
        except LimitError as error:
            raise RequestError(f"the chat template was stopped: {error.message}") from None
        except RecursionError:
            raise RequestError("the chat template was stopped: it nests or recurses too deeply") from None
        except UnicodeEncodeError:
            raise RequestError("the rendered prompt is no valid text: it holds a lone surrogate") from None
        except MemoryError:
            raise RequestError("the chat template was stopped: it needs too much memory") from None
        # Any of these can come out of an expression in the template: a wrong type, a missing key, a division by zero.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError) as e:
            raise RequestError(f"the chat template failed{_place(e)}: {e}") from e
        return text

    @cached_property
    def _code(self) -> CodeType:
        if len(self.source) > MAX_SOURCE_CHARS:
            raise ModelError(f"the chat template is longer than {MAX_SOURCE_CHARS} characters: use --chat-template")
        sandbox = self._sandbox(Limits())
        try:
            return sandbox.compile(metered(sandbox.parse(self.source)))
        except TemplateSyntaxError as error:
            why = f"line {error.lineno}: {error.message}"
        except (RecursionError, SyntaxError, TemplateError) as error:
            why = f"it cannot be compiled: {type(error).__name__}"
        raise ModelError(
            f"the chat template is no valid Jinja ({why}): use another with --chat-template chatml, or --no-jinja"
        )

    def _sandbox(self, limits: Limits) -> Sandbox:
        sandbox = Sandbox(limits)
        sandbox.add_filter("tojson", tojson)
        sandbox.globals["raise_exception"] = raise_exception
        sandbox.globals["strftime_now"] = self._strftime_now
        return sandbox

    def _strftime_now(self, format: str) -> str:
        return self._clock().strftime(format)


def copied(value: object) -> object:
    """A deep copy of a JSON value, as plain dicts and lists. Raises TypeError for anything that is not JSON."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [copied(item) for item in value]
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _place(error: BaseException) -> str:
    """` at line N`, from the frames that jinja2 maps back to template lines."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" at line {line}" if line else ""
