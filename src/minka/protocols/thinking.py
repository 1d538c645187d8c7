"""The reasoning of a text that no chat template begins: the request names its tags, and how long it may be.

llama-server's fields for plain prompts. A chat knows its tags by itself; where its template has none, these count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from minka.errors import RequestError
from minka.grammar.lazy import split
from minka.params import ChatParams, json_type, parse_fields
from minka.protocols.body import JsonObject, Options
from minka.protocols.schema import FLAG, TEXT, Field, listed
from minka.protocols.served import Served
from minka.types import Constraint, Job, Thinking, Tokenizer

_START, _END, _ENDS = "reasoning_budget_start_tag", "reasoning_budget_end_tag", "reasoning_budget_end_tags"
_BUDGETS = ("reasoning_budget_tokens", "thinking_budget_tokens")

MAX_TAGS = 16
MAX_TAG = 200
"""Characters of a tag: the end of the text is searched for all of them after each token."""

_BLANKS = 16
"""Tokens of white space that may stand between the start tag and the end of the prompt."""


def decode_thinking(body: JsonObject, settings: ChatParams) -> Thinking | None:
    """The reasoning that the request describes, None if it names no tags.

    Raises RequestError for tags that are wrong, and for a start without an end.
    """
    start, ends = _text(body, _START), _end_tags(body)
    if bool(start) != bool(ends):
        missing = _END if start else _START
        raise RequestError(
            f'"{_START}" and "{_END}" go together, but there is no "{missing}": '
            "the reasoning goes from one to the other",
            param=missing,
        )
    if not start:
        return None
    return Thinking(start, ends, budget=settings.reasoning_budget, message=settings.reasoning_budget_message)


def watched(options: Options, body: JsonObject, served: Served) -> Options:
    """The options of plain prompts with the reasoning that the request wants watched, if somebody has to.

    It is open if `generation_prompt` says so. Raises RequestError for a budget without tags, which would do nothing.
    """
    settings, begun = parse_fields(ChatParams, body, served.chat), _text(body, "generation_prompt")
    thinking = decode_thinking(body, settings)
    if thinking is None:
        _refuse_budget(body)
        return options
    constraint = options.constraint or Constraint()
    # A grammar that begins late must not begin within the reasoning, whether that has a limit or not.
    is_lazy = split(constraint.grammar)[0] is not None
    if settings.reasoning_budget < 0 and not settings.reasoning_control and not is_lazy:
        return options
    _, start, inside = begun.rpartition(thinking.start)
    is_open = bool(start) and not any(end in inside for end in thinking.ends)
    return replace(options, constraint=replace(constraint, thinking=replace(thinking, is_open=is_open)))


def chat_thinking(body: JsonObject, settings: ChatParams, prompt: str) -> Thinking | None:
    """The same for a chat whose template knows no reasoning. A budget without tags is nothing there."""
    thinking = decode_thinking(body, settings)
    if thinking is None or (settings.reasoning_budget < 0 and not settings.reasoning_control):
        return None
    return _opened(thinking, prompt)


def opened(jobs: Iterable[Job], tokenizer: Tokenizer) -> tuple[Job, ...]:
    """The jobs, with the reasoning open in those whose prompt ends with its start tag."""
    return tuple(_opened_job(job, tokenizer) for job in jobs)


def _opened_job(job: Job, tokenizer: Tokenizer) -> Job:
    if job.constraint is None or job.constraint.thinking is None:
        return job
    thinking = job.constraint.thinking
    tail = job.prompt[-len(thinking.start.encode()) - _BLANKS :]
    prompt = tokenizer.detokenize(tail, special=True).decode("utf-8", "replace")
    return replace(job, constraint=replace(job.constraint, thinking=_opened(thinking, prompt)))


def _opened(thinking: Thinking, prompt: str) -> Thinking:
    ends_with_it = prompt.rstrip().endswith(thinking.start.rstrip() or thinking.start)
    return replace(thinking, is_open=thinking.is_open or ends_with_it)


def _refuse_budget(body: JsonObject) -> None:
    for name in _BUDGETS:
        if body.get(name) not in (None, -1):
            raise RequestError(
                f'"{name}" needs "{_START}" and "{_END}" here: a plain prompt does not say what its reasoning is',
                param=name,
            )


def _end_tags(body: JsonObject) -> tuple[str, ...]:
    """The end tags; a list of them beats a single one."""
    values = body.get(_ENDS)
    if values is None:
        end = _text(body, _END)
        return (end,) if end else ()
    if not isinstance(values, list) or len(values) > MAX_TAGS:
        raise RequestError(f'"{_ENDS}" must be a list of at most {MAX_TAGS} strings', param=_ENDS)
    tags = [_text({_ENDS: value}, _ENDS) for value in values]
    return tuple(tag for tag in tags if tag)


def _text(body: JsonObject, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str | None):
        raise RequestError(f'"{name}" must be a string, but is {json_type(value)}', param=name)
    if name != "generation_prompt" and len(value or "") > MAX_TAG:
        raise RequestError(f'"{name}" has more than {MAX_TAG} characters', param=name)
    return value or ""


THINKING_FIELDS = (
    Field("reasoning_budget_tokens", {"type": "integer", "minimum": -1}, "the most tokens of reasoning; -1 for any"),
    Field("thinking_budget_tokens", {"type": "integer", "minimum": -1}, "the same as reasoning_budget_tokens"),
    Field("reasoning_budget_message", TEXT, "what is written before reasoning is ended for its length"),
    Field("reasoning_control", FLAG, "let POST /v1/chat/completions/control end the reasoning"),
    Field(_START, TEXT, "what begins the reasoning, as <think>; for prompts without a chat template that knows it"),
    Field(_END, TEXT, "what ends it"),
    Field(_ENDS, listed(TEXT, maxItems=MAX_TAGS), "several such tags; the first is written when the budget is used"),
)
PLAIN_FIELDS = (
    *THINKING_FIELDS,
    Field("generation_prompt", TEXT, "the end of the prompt, if the reasoning is open there and begins further back"),
)
