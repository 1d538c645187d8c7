"""The parameters of `chat` and `complete` that no other command has, as rows of the parameter table.

Spellings are those of llama.cpp's llama-cli and llama-completion.
"""

from __future__ import annotations

from dataclasses import dataclass

from minka.params import INT32_MAX, Syntax, param

_INPUT, _OUTPUT = "Message", "Output"
_PROMPT, _TURNS = "Prompt", "Taking turns"

OMITTED = (
    *("alias", "tags", "parallel", "kv_unified", "kv_unified_per_slot", "cont_batching"),
    *("sse_ping_interval", "prefill_assistant", "verbosity"),
)
"""Attributes of the table that mean nothing to a single user at a terminal, or that the classes here replace."""


# fmt: off
@dataclass(frozen=True, slots=True)
class QuietParams:
    """How much is logged: less than a server logs, as what counts is the model's text."""

    level: int = param(
        2, "-lv", "--verbosity", "--log-verbosity", env="LLAMA_ARG_LOG_VERBOSITY", low=0, high=INT32_MAX, topic="Log",
        doc="how much is logged: 0 output, 1 errors, 2 warnings, 3 information, 4 traces, 5 all")


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The conversation's beginning, its manners, and where it is written."""

    prompt: str | None = param(
        None, "-p", "--prompt", metavar="TEXT", topic=_INPUT,
        doc="answer this message and exit; text that is piped in is added to it")
    file: str | None = param(
        None, "-f", "--file", metavar="FILE", topic=_INPUT,
        doc="a file with the message, or with what follows the message of -p")
    system_prompt: str | None = param(
        None, "-sys", "--system-prompt", metavar="TEXT", topic=_INPUT, doc="the system message")
    system_prompt_file: str | None = param(
        None, "-sysf", "--system-prompt-file", metavar="FILE", topic=_INPUT, doc="a file with the system message")
    conversation: bool = param(
        False, "-cnv", "--conversation", negated=("-no-cnv", "--no-conversation"), topic=_INPUT,
        doc="go on with a conversation after the message of -p or -f")
    single_turn: bool = param(
        False, "-st", "--single-turn", topic=_INPUT, doc="leave after one answer")
    multiline: bool = param(
        False, "-mli", "--multiline-input", topic=_INPUT,
        doc="Enter begins a new line and a backslash at the end of a line sends the message; without this, the reverse")
    simple_io: bool = param(
        False, "--simple-io", topic=_INPUT,
        doc="read plain lines, each a message, without editing and colours; also from a pipe")
    output: str | None = param(
        None, "-o", "--output", "--output-file", metavar="FILE", topic=_OUTPUT,
        doc="write all messages and answers to a file, which is replaced after each answer")
    color: str = param(
        "auto", "-co", "--color", choices=("on", "off", "auto"), syntax=Syntax.SWITCH, metavar="on|off|auto",
        topic=_OUTPUT,
        doc="colours; auto has them on a terminal")
    show_timings: bool = param(
        True, "--show-timings", negated=("--no-show-timings",), env="LLAMA_ARG_SHOW_TIMINGS", topic=_OUTPUT,
        doc="show tokens a second after each answer of a conversation")
    verbose_prompt: bool = param(
        False, "--verbose-prompt", topic=_OUTPUT, doc="print the tokens of every prompt to standard error")
    display_prompt: bool = param(
        True, "--display-prompt", negated=("--no-display-prompt",), topic=_OUTPUT, inert=True,
        doc="accepted without effect: an answer never repeats its message")


@dataclass(frozen=True, slots=True)
class CompleteOptions:
    """The text to go on from, and how the result is written."""

    prompt: str | None = param(
        None, "-p", "--prompt", metavar="TEXT", topic=_PROMPT,
        doc="the text to go on from; what a file holds and what is piped in follow it")
    file: str | None = param(
        None, "-f", "--file", metavar="FILE", topic=_PROMPT,
        doc="a text file to go on from; one newline at its end is dropped")
    binary_file: str | None = param(
        None, "-bf", "--binary-file", metavar="FILE", topic=_PROMPT,
        doc="a file to go on from as it is, to its last byte")
    prompt_cache: str | None = param(
        None, "--prompt-cache", metavar="FILE", topic=_PROMPT,
        doc="keep what is computed of the prompt in a file, and begin with what is in it; without a prompt, go on from "
        "its text")
    prompt_cache_all: bool = param(
        False, "--prompt-cache-all", topic=_PROMPT, doc="keep the generated text there as well")
    prompt_cache_ro: bool = param(
        False, "--prompt-cache-ro", topic=_PROMPT, doc="read the file of --prompt-cache, and leave it as it is")
    interactive: bool = param(
        False, "-i", "--interactive", topic=_TURNS,
        doc="write in turns: after a reverse prompt (-r), its end or Ctrl-C the model waits for a line, and goes on")
    interactive_first: bool = param(
        False, "-if", "--interactive-first", topic=_TURNS, doc="the same, and the first line is the user's")
    in_prefix: str = param(
        "", "--in-prefix", metavar="TEXT", topic=_TURNS, doc="text to put before each line of the user")
    in_suffix: str = param(
        "", "--in-suffix", metavar="TEXT", topic=_TURNS, doc="text to put after each line of the user")
    in_prefix_bos: bool = param(
        False, "--in-prefix-bos", topic=_TURNS, doc="put the BOS token before each line of the user, and its prefix")
    conversation: bool | None = param(
        None, "-cnv", "--conversation", negated=("-no-cnv", "--no-conversation"), topic=_TURNS,
        doc="hold a conversation with the model's chat template, as `minka chat` does; without this and a system "
        "message the prompt goes to the model as it is")
    system_prompt: str | None = param(
        None, "-sys", "--system-prompt", metavar="TEXT", topic=_TURNS,
        doc="the system message of a conversation, which begins with it")
    system_prompt_file: str | None = param(
        None, "-sysf", "--system-prompt-file", metavar="FILE", topic=_TURNS, doc="a file with the system message")
    single_turn: bool = param(
        False, "-st", "--single-turn", topic=_TURNS, doc="answer one message of a conversation, and leave")
    multiline: bool = param(
        False, "-mli", "--multiline-input", topic=_TURNS,
        doc="Enter begins a new line and a backslash at the end of a line sends all; without this, the reverse")
    display_prompt: bool = param(
        True, "--display-prompt", negated=("--no-display-prompt",), topic=_OUTPUT,
        doc="write the prompt before its completion")
    output: str | None = param(
        None, "-o", "--output", "--output-file", metavar="FILE", topic=_OUTPUT,
        doc="write the same text to a file as well, once it is complete")
    verbose_prompt: bool = param(
        False, "--verbose-prompt", topic=_OUTPUT, doc="print the tokens of the prompt to standard error")
    print_token_count: int = param(
        -1, "-ptc", "--print-token-count", low=-1, high=INT32_MAX, topic=_OUTPUT,
        doc="print how much of the context is used to standard error, every N tokens; -1 or 0 is off")
    simple_io: bool = param(
        False, "--simple-io", topic=_OUTPUT, doc="read plain lines, without editing and colours")
    color: str = param(
        "auto", "-co", "--color", choices=("on", "off", "auto"), syntax=Syntax.SWITCH, metavar="on|off|auto",
        topic=_OUTPUT,
        doc="colours for what the user types; auto has them on a terminal")
# fmt: on
