"""Every template of a directory: which format is found for it, and that it reads back what the template writes.

An answer with reasoning, content and two calls is rendered, cut out of the conversation, and parsed. MINKA_TEMPLATES
names the directory: llama.cpp's models/templates, vLLM's examples, or your own collection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from minka.chat.formats.find import find_format
from minka.chat.formats.format import Ask, Calls, Format, Tool
from minka.chat.messages import Message, ToolCall
from minka.chat.profile import common_prefix
from minka.chat.template import ChatTemplate
from tests.chat.formats.samples import DIRECTORY, Sample, accepts, read, real
from tests.chat.sources import template

FILES = sorted(Path(DIRECTORY).glob("*.jinja")) if DIRECTORY else []

REASONING, CONTENT = "First I look, then I tell.", "Let me look that up."
CITY = 'Zürich "Höngg" <b> \\ 東京 🎈'
FILTER: dict[str, object] = {"tags": ["a b", "c"], "deep": {"low": 0.5}}
FULL: dict[str, object] = {"city": CITY, "days": 3, "exact": True, "filter": FILTER}
NO_BOOLEAN: dict[str, object] = {"city": CITY, "days": 3, "filter": FILTER}
FILTER_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string"}},
        "deep": {"type": "object", "properties": {"low": {"type": "number"}}, "additionalProperties": False},
    },
    "additionalProperties": False,
}
PROPERTIES: dict[str, object] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "exact": {"type": "boolean"},
    "filter": FILTER_SCHEMA,
}
TOOLS = (
    Tool("get_weather", "Weather of a city", {"type": "object", "properties": PROPERTIES, "required": ["city"]}),
    Tool("get_time", "The time", {"type": "object", "properties": {}}),
)
WIRE = [
    {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }
    for tool in TOOLS
]
USER = Message("user", "word-user")

TURN_ENDS = re.compile(
    r"<\|im_end\|>|(\n<\|START_OF_TURN|<\|END_OF_TURN)_TOKEN\|>|</s>|<seed:eos>|<\|message_sep\|>\n\n$|<end_of_sentence>"
    r"|\[e~\[|<SPECIAL_12>|\n\n<sep>|<\|(eot|eom)(_id)?\|>$|<\|end_of_text\|>|<\|role_end\|>|<｜end▁of▁sentence｜>"
    r"|<\|eo[tm]_id\|><\|start_header_id\|>|<turn\|>|<\|tool_response>|<end_of_turn>|</assistant>|<｜hy_eos:opensource｜>"
    r"|\n?<\|end\|>(\n|</s>|<\|assistant)|<\|return\|>|<\|call\|>$|<\|end_of_msg\|>|\n\n$|\[\|endofturn\|\]"
    r"|<\|eos\|>|<\|endoftext\|>|\n<extra_id_1>|<\|eot\|>"
)
"""What ends a turn: the model's end token, which an engine takes off the text."""
TURN_START = re.compile(r"^<\|CHATBOT_TOKEN\|>|^word-user\[/INST\]|^ *<｜Assistant｜>(?=</think>)")


@dataclass(frozen=True)
class Answer:
    """What a template is asked to show. What it leaves out of a past answer (reasoning, content) is not expected back.

    `why` says why this is less than all: two calls, and arguments of all kinds.
    """

    why: str = ""
    content: str | None = CONTENT
    n_calls: int = 2
    arguments: Mapping[str, object] = field(default_factory=lambda: FULL)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls, with ids that every template takes."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        both = (ToolCall("abcde00001", "get_weather", arguments), ToolCall("abcde00002", "get_time", "{}"))
        return both[: self.n_calls]


ALL = Answer()
ONE_CALL = Answer("the template takes one call at a time", n_calls=1)
CALLS_ALONE = Answer("the template shows calls only in a message without content", content=None)
WHOLE = Answer("in the form for templates without tools, calls are the whole answer", content=None)
EXCEPTIONS = {
    "GigaChat3-10B-A1.8B": ONE_CALL,
    "GigaChat3.1-10B-A1.8B": ONE_CALL,
    "openai-gpt-oss-120b": ONE_CALL,
    "meta-llama-Llama-3.1-8B-Instruct": ONE_CALL,
    "meta-llama-Llama-3.2-3B-Instruct": ONE_CALL,
    "meta-llama-Llama-3.3-70B-Instruct": ONE_CALL,
    "NVIDIA-Nemotron-Nano-v2": CALLS_ALONE,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": CALLS_ALONE,
    "llama-cpp-deepseek-r1": CALLS_ALONE,
    "tool_chat_template_llama3.1_json": ONE_CALL,
    "tool_chat_template_llama3.2_json": ONE_CALL,
    "tool_chat_template_llama4_json": CALLS_ALONE,
}
FORMATS = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed-oss",
    "Cohere2MoE": "command-a",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command-r-plus",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r7b",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "GigaChat3-10B-A1.8B": "gigachat-v3",
    "GigaChat3.1-10B-A1.8B": "gigachat-v3.1",
    "HuggingFaceTB-SmolLM3-3B": "generic",
    "Kimi-K2-Instruct": "kimi-k2",
    "Kimi-K2-Thinking": "kimi-k2",
    "Kimi-K3": "kimi-k3",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax-m1",
    "MiniMax-M2": "minimax-m2",
    "MiniMax-M3": "minimax-m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral-small",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen-coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron-v2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen-coder",
    "Qwen3.5-4B": "qwen-coder",
    "Reka-Edge": "learned",
    "Spark2.5": "glm",
    "StepFun3.5-Flash": "qwen-coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "generic",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-r1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek-v3.1",
    "deepseek-ai-DeepSeek-V3.2": "deepseek-dsml",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek-dsml",
    "deepseek-ai-DeepSeek-V4": "deepseek-dsml",
    "fireworks-ai-llama-3-firefunction-v2": "functools",
    "google-gemma-2-2b-it": "generic",
    "google-gemma-4-31B-it-interleaved": "gemma-4",
    "google-gemma-4-31B-it": "gemma-4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite-3",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "ling-3",
    "llama-cpp-deepseek-r1": "deepseek-r1",
    "llama-cpp-rwkv-world": "generic",
    "meetkai-functionary-medium-v3.1": "functionary-v3.1",
    "meetkai-functionary-medium-v3.2": "functionary-v3.2",
    "meta-llama-Llama-3.1-8B-Instruct": "llama-3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama-3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama-3",
    "microsoft-Phi-3.5-mini-instruct": "generic",
    "mistralai-Ministral-3-14B-Reasoning-2512": "ministral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral-nemo",
    "moonshotai-Kimi-K2": "kimi-k2",
    "muse-glimmer": "muse",
    "openai-gpt-oss-120b": "harmony",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "laguna",
    "poolside-Laguna-XS-2.1": "laguna",
    "poolside-Laguna-XS.2": "laguna",
    "tencent-Hy3": "hunyuan-3",
    "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "ministral",
    "upstage-Solar-Open-100B": "solar-open",
    "EXAONE-3.5": "generic",
    "EXAONE-4.0": "hermes",
    "EXAONE-Deep": "generic",
    "Phi-4-mini": "phi-4-mini",
    "tool_chat_template_apertus": "apertus",
    "tool_chat_template_deepseekr1": "deepseek-r1",
    "tool_chat_template_deepseekv3": "deepseek-r1",
    "tool_chat_template_deepseekv31": "deepseek-v3.1",
    "tool_chat_template_functiongemma": "functiongemma",
    "tool_chat_template_gemma3_pythonic": "pythonic",
    "tool_chat_template_gemma4": "gemma-4",
    "tool_chat_template_glm4": "glm",
    "tool_chat_template_granite": "granite-3",
    "tool_chat_template_granite_20b_fc": "learned",
    "tool_chat_template_hermes": "hermes",
    "tool_chat_template_hunyuan_a13b": "hunyuan",
    "tool_chat_template_internlm2_tool": "learned",
    "tool_chat_template_llama3.1_json": "llama-3",
    "tool_chat_template_llama3.2_json": "llama-3",
    "tool_chat_template_llama3.2_pythonic": "pythonic",
    "tool_chat_template_llama4_json": "llama-4",
    "tool_chat_template_llama4_pythonic": "pythonic",
    "tool_chat_template_mistral": "mistral-nemo",
    "tool_chat_template_mistral3": "mistral-nemo",
    "tool_chat_template_mistral_parallel": "mistral-nemo",
    "tool_chat_template_muse_glimmer": "muse",
    "tool_chat_template_phi4_mini": "functools",
    "tool_chat_template_qwen3coder": "qwen-coder",
    "tool_chat_template_toolace": "pythonic",
    "tool_chat_template_xlam_llama": "learned",
    "tool_chat_template_xlam_qwen": "learned",
}
"""The format of each template; "learned" and "generic" are no family's."""
LOOSE = {
    "Reka-Edge": "it escapes all that is not ASCII",
    "google-gemma-4-31B-it": "it writes content behind the calls",
    "google-gemma-4-31B-it-interleaved": "it writes content behind the calls",
    "CohereForAI-c4ai-command-r-plus-tool_use": "it writes each part of a call on a line of its own",
    "ByteDance-Seed-OSS": "it writes true and lists as Python does",
    "openbmb-MiniCPM5-1B": "it writes true and lists as Python does",
    "LFM2.5-8B-A1B": "it quotes text with ' and escapes nothing, which can be read but should not be written",
    "deepseek-ai-DeepSeek-V4": "it writes an empty line for no arguments",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "it writes an empty line for no arguments",
    "tool_chat_template_gemma4": "it writes content behind the calls",
    "tool_chat_template_granite": "it writes each part of a call on a line of its own",
    "tool_chat_template_mistral": "it writes a space before the list",
    "tool_chat_template_mistral3": "it writes a space before the list",
    "tool_chat_template_mistral_parallel": "it writes a space before the list",
    "tool_chat_template_deepseekv31": "its own indentation is between the calls",
    "tool_chat_template_llama4_json": "it writes a line break behind the calls",
}
"""Templates that write what their format's grammar does not let a model write, and why."""
UNREADABLE = {
    "tool_chat_template_gemma3_pythonic": "it puts no comma between arguments",
    "tool_chat_template_llama3.2_pythonic": "it writes text without quotes",
    "tool_chat_template_toolace": "it writes text without quotes",
    "tool_chat_template_llama4_pythonic": "it quotes all values and escapes nothing",
    "tool_chat_template_functiongemma": "it writes all values as text",
    "tool_chat_template_phi4_mini": "it leaves the marker out that it asks for",
    "tool_chat_template_deepseekv3": "its own indentation is in the content",
}
"""Templates that show past calls otherwise than they tell the model to write them, and how."""


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def name(request: pytest.FixtureRequest) -> str:
    path: Path = request.param
    return path.stem


def test_directory_is_given() -> None:
    if not FILES:
        pytest.skip("set MINKA_TEMPLATES to a directory of *.jinja files to try them all")


def test_format(name: str) -> None:
    if name not in FORMATS:
        pytest.skip("neither one of llama.cpp's templates nor of vLLM's")
    assert found(name).name == FORMATS[name]


def test_reads_what_the_template_writes(name: str) -> None:
    if name in UNREADABLE:
        pytest.skip(UNREADABLE[name])
    format = found(name)
    answer = EXCEPTIONS.get(name, WHOLE if format.name == "generic" else ALL)
    sample = written(chosen(name), answer, format)
    whole = read(format, sample, len(sample.raw))
    assert whole.reasoning == (REASONING if REASONING in sample.raw else "")
    assert whole.content == (CONTENT if CONTENT in sample.raw else "")
    calls = [(name, json.loads(arguments)) for name, _, arguments in whole.calls]
    assert calls == [(call.name, json.loads(call.arguments)) for call in answer.calls]
    assert not whole.broken
    assert whole.cut is None
    for n in (1, 2, 3, 7):
        assert read(format, sample, n) == whole


def test_grammar_takes_what_the_template_writes(name: str) -> None:
    if name in LOOSE or name in UNREADABLE:
        pytest.skip(LOOSE.get(name) or UNREADABLE[name])
    format = found(name)
    answer = EXCEPTIONS.get(name, WHOLE if format.name == "generic" else Answer(arguments=NO_BOOLEAN))
    sample = written(chosen(name), answer, format)
    assert accepts(format, sample.ask, sample.raw)
    assert accepts(format, sample.ask, sample.raw, special=False)


@cache
def chosen(name: str) -> ChatTemplate:
    """The template, which has been looked into when it is asked for again."""
    return template(real(name))


@cache
def found(name: str) -> Format:
    """The format that is found for the template."""
    return find_format(chosen(name))


def written(chosen: ChatTemplate, answer: Answer, format: Format) -> Sample:
    """What the model would have written to make the template show this answer, and the prompt's end before it."""
    message = Message("assistant", answer.content, reasoning_content=REASONING, tool_calls=answer.calls)
    header = chosen.render([USER], tools=WIRE)
    whole = chosen.render([USER, message], tools=WIRE, add_generation_prompt=False)
    shared = common_prefix(header, whole)
    if shared.rfind("<") > shared.rfind(">"):
        shared = shared[: shared.rfind("<")]
    text = TURN_START.sub("", whole[len(shared) :])
    end = TURN_ENDS.search(text)
    text = text[: end.start()] if end else text
    tags = format.reasoning
    # A prompt may open the reasoning; some templates then leave the tag out of a past answer, too.
    is_open = tags is not None and tags.start.strip() not in text and any(tag.strip() in text for tag in tags.ends)
    prefill = tags.start if tags and is_open else ""
    return Sample(text, ask=Ask(TOOLS, Calls.AUTO, thinks=True, prefill=prefill))
