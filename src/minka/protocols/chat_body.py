"""From the body of an OpenAI chat request to its turn: messages, tools, reasoning options, what the text must match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from minka.chat import tools
from minka.chat.messages import ROLES
from minka.chat.prompt import decode_prompt, prompt_tokens
from minka.chat.turn import Turn
from minka.errors import RequestError
from minka.grammar.lazy import split
from minka.params import ChatParams, parse_fields
from minka.protocols.body import JsonObject
from minka.protocols.constraint import Content, check, decode_content
from minka.protocols.schema import FLAG, NULL, TEXT, Field, either, listed, record, word
from minka.protocols.served import Served
from minka.protocols.thinking import THINKING_FIELDS, chat_thinking
from minka.types import Constraint, Job


def chat_turn(body: JsonObject, served: Served) -> Turn:
    """The turn that a request asks for. Raises RequestError that names the field that is wrong."""
    body = _modern(body)
    prompt = decode_prompt(body, prefill=served.prefill_assistant)
    caps = served.template.caps
    parallel = caps.supports_parallel_tool_calls or not caps.supports_tool_calls
    choice = tools.decode_tools(body, parallel=parallel)
    content = decode_content(body, served.content) or Content()
    if content.body and choice.callable and not content.is_schema:
        raise RequestError("Cannot use custom grammar constraints with tools.", param=content.field)
    settings = _settings(body, served)
    turn = served.writer.turn(
        prompt.messages,
        prefill=prompt.prefill,
        kwargs=prompt.kwargs,
        choice=choice,
        content=content.body,
        settings=settings,
    )
    if served.format.reasoning is not None:
        return turn
    return replace(turn, thinking=chat_thinking(body, settings, turn.prompt))


def _settings(body: JsonObject, served: Served) -> ChatParams:
    """The request's reasoning options. In a stream, where nothing can be told twice, `deepseek-legacy` is `none`."""
    settings = parse_fields(ChatParams, body, served.chat)
    if settings.reasoning_format == "deepseek-legacy" and body.get("stream") is True:
        return replace(settings, reasoning_format="none")
    return settings


def chat_text(body: JsonObject, served: Served) -> str:
    """The text that the template makes of a chat request."""
    return chat_turn(body, served).prompt


def chat_tokens(body: JsonObject, served: Served) -> list[int]:
    """The tokens of a chat request's prompt."""
    return prompt_tokens(chat_text(body, served), served.tokenizer)


def held_to(turn: Turn, jobs: tuple[Job, ...], served: Served, content: Content | None = None) -> tuple[Job, ...]:
    """The jobs of a turn, which match what it asks for, and show the parser what it looks for.

    `content` is what the text has to match, for its name in errors.

    Raises RequestError for a constraint that cannot be kept, NotSupportedError if the server knows none.
    """
    preserved, stops = turn.preserved(served.tokenizer), tuple(turn.format.stops)
    constraint = _constraint(turn, jobs[0])
    check(constraint, served.grammars, None if turn.ask.tools else content)
    return tuple(
        replace(
            job,
            stop=job.stop + stops,
            preserved_tokens=job.preserved_tokens | preserved,
            constraint=constraint,
        )
        for job in jobs
    )


def _constraint(turn: Turn, job: Job) -> Constraint | None:
    """What the answer has to match. A grammar that begins late stands as the request has it."""
    if job.constraint is not None and split(job.constraint.grammar)[0] is not None:
        return replace(job.constraint, thinking=turn.thinking)
    return turn.constraint


def is_legacy(body: JsonObject) -> bool:
    """Whether the client knows only `functions`, and is answered with a `function_call`."""
    return body.get("functions") is not None


def _modern(body: JsonObject) -> JsonObject:
    """The body with the `function_call` of earlier messages as tool calls."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    return {**body, "messages": [_modern_message(message, index) for index, message in enumerate(messages)]}


def _modern_message(message: object, index: int) -> object:
    if not isinstance(message, Mapping) or message.get("function_call") is None:
        return message
    if message.get("tool_calls"):
        path = f"messages[{index}].function_call"
        raise RequestError("'function_call' is the older form of 'tool_calls': send only one of them", param=path)
    rest = {key: value for key, value in message.items() if key != "function_call"}
    return {**rest, "tool_calls": [{"type": "function", "function": message["function_call"]}]}


_MESSAGE = {
    **record(
        role=word(*sorted(ROLES)),
        content=either(TEXT, listed(record(type=word("text"), text=TEXT)), NULL),
        name=TEXT,
        reasoning_content=TEXT,
        tool_calls=listed({"type": "object"}),
        tool_call_id=TEXT,
    ),
    "required": ["role"],
}
_FUNCTION = {
    **record(name=TEXT, description=TEXT, parameters={"type": "object"}, strict=FLAG),
    "required": ["name"],
}
_NAMED = record(type=word("function"), function=record(name=TEXT))
_ALLOWED = record(
    type=word("allowed_tools"),
    allowed_tools=record(mode=word("auto", "required"), tools=listed(_NAMED, minItems=1)),
)
CHAT_FIELDS = (
    Field("messages", listed(_MESSAGE, minItems=1), "the conversation, oldest message first", required=True),
    Field("add_generation_prompt", FLAG, "end the prompt with the header of an answer; true if not given"),
    Field(
        "continue_final_message",
        either(FLAG, word("content", "reasoning_content")),
        "go on with the assistant's message at the end of the conversation",
    ),
    Field("chat_template_kwargs", {"type": "object"}, "further variables for the chat template"),
    Field(
        "tools",
        listed(record(type=word("function"), function=_FUNCTION), maxItems=tools.MAX_TOOLS),
        "functions that the model may call, with the JSON schema of their arguments",
    ),
    Field(
        "tool_choice",
        either(word("auto", "none", "required"), _NAMED, _ALLOWED),
        "whether the model may, must not or must call one, or which it must call",
    ),
    Field("parallel_tool_calls", FLAG, "let one answer have several calls; else what the chat template can show"),
    Field("parse_tool_calls", FLAG, "false leaves calls in the text"),
    Field("functions", listed(_FUNCTION, maxItems=tools.MAX_TOOLS), "the older form of tools"),
    Field("function_call", either(word("auto", "none"), record(name=TEXT)), "the older form of tool_choice"),
    *(
        Field(name, schema, doc)
        for name, schema, doc in (
            (
                "reasoning_format",
                word("auto", "none", "deepseek", "deepseek-legacy"),
                "where reasoning goes: reasoning_content (auto, deepseek), the content (none), or both",
            ),
            ("reasoning_effort", TEXT, "how much to think, as the chat template knows it; none for not at all"),
        )
    ),
    *THINKING_FIELDS,
)
