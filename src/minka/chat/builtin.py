"""Chat templates by name, for models that carry none: `--chat-template NAME`.

The names and the formats are those of libllama's `llama_chat_apply_template`, written here as Jinja so that everything
that works on a model's own template works on these. A test compares each with libllama. A pure table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

OTHER = "other"
"""Stands for all roles that a template does not name."""


def _text(text: str) -> str:
    """A Jinja string literal."""
    return json.dumps(text, ensure_ascii=False)


def _generation(text: str) -> str:
    return f"{{%- if add_generation_prompt -%}}{{{{ {_text(text)} }}}}{{%- endif -%}}" if text else ""


def _each(body: str, generation: str = "", start: str = "") -> str:
    """`body` for each message, with `role`, `content` and `trimmed` set."""
    return (
        (f"{{{{ {_text(start)} }}}}" if start else "")
        + "{%- for message in messages -%}{%- set role, content = message.role, message.content -%}"
        + "{%- set trimmed = content | trim -%}"
        + f"{body}{{%- endfor -%}}{_generation(generation)}"
    )


def _any_role(
    before: str, between: str, after: str, generation: str, *, start: str = "", content: str = "content"
) -> str:
    """Every role alike: its name stands between `before` and `between`, its content between that and `after`."""
    body = f"{{{{ {_text(before)} ~ role ~ {_text(between)} ~ {content} ~ {_text(after)} }}}}"
    return _each(body, generation, start)


def _by_role(
    roles: Mapping[str, tuple[str, str]], generation: str = "", *, start: str = "", content: str = "content"
) -> str:
    """Each role with its own text before and after the content; a role that is not named says nothing."""
    cases = [(f"role == {_text(role)}", pair) for role, pair in roles.items() if role != OTHER]
    tests = [
        f"{{%- {'elif' if i else 'if'} {test} -%}}{_around(pair, content)}" for i, (test, pair) in enumerate(cases)
    ]
    if OTHER in roles:
        tests.append(f"{{%- else -%}}{_around(roles[OTHER], content)}")
    return _each("".join(tests) + "{%- endif -%}", generation, start)


def _around(pair: tuple[str, str], content: str) -> str:
    return f"{{{{ {_text(pair[0])} ~ {content} ~ {_text(pair[1])} }}}}"


def _llama2(system: str, again: str = "[INST] ", content: str = "content") -> str:
    """`[INST] ` opens a turn and the answer closes it; `system` is an expression over `text`."""
    body = (
        f"{{%- set text = {content} -%}}"
        f"{{%- if ns.closed -%}}{{%- set ns.closed = false -%}}{{{{ {_text(again)} }}}}{{%- endif -%}}"
        f"{{%- if role == 'system' -%}}{{{{ {system} }}}}"
        "{%- elif role == 'user' -%}{{ text ~ ' [/INST]' }}"
        "{%- else -%}{%- set ns.closed = true -%}{{ text ~ '</s>' }}{%- endif -%}"
    )
    return "{%- set ns = namespace(closed=false) -%}" + _each(body, start="[INST] ")


def _mistral(lead: str, space: str, answer: str = "content") -> str:
    """The formats v1 and v3: like Llama 2's, with the system text as the head of the user's."""
    body = (
        f"{{%- if ns.closed -%}}{{{{ {_text(lead + '[INST]' + space)} }}}}{{%- set ns.closed = false -%}}"
        "{%- endif -%}"
        '{%- if role == "system" -%}{{ content ~ "\\n\\n" }}'
        f"{{%- elif role == 'user' -%}}{{{{ content ~ {_text(lead + '[/INST]')} }}}}"
        f"{{%- else -%}}{{%- set ns.closed = true -%}}{{{{ {_text(space)} ~ {answer} ~ '</s>' }}}}{{%- endif -%}}"
    )
    return "{%- set ns = namespace(closed=true) -%}" + _each(body)


def _held_system(holder: str, turn: str, other: str, generation: str = "", *, system: str = "content") -> str:
    """The system text is held back until a role that passes the test `holder`; `turn` shows it as `held`."""
    body = (
        f"{{%- if role == 'system' -%}}{{%- set ns.held = ns.held ~ {system} -%}}"
        '{%- else -%}{%- set held = ns.held ~ "\\n\\n" if ns.held else "" -%}'
        f"{{%- if {holder} -%}}{{%- set ns.held = '' -%}}{turn}{{%- else -%}}{other}{{%- endif -%}}{{%- endif -%}}"
    )
    return "{%- set ns = namespace(held='') -%}" + _each(body, generation)


def _bailing(after: str, generation: str) -> str:
    body = f"{{{{ '<role>' ~ ('HUMAN' if role == 'user' else role | upper) ~ '</role>' ~ content ~ {_text(after)} }}}}"
    return _each(body, generation)


SYS = '"<<SYS>>\\n" ~ text ~ "\\n<</SYS>>\\n\\n"'
SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
EXAONE = {
    SYSTEM: ("[|system|]", "[|endofturn|]\n"),
    USER: ("[|user|]", "\n"),
    ASSISTANT: ("[|assistant|]", "[|endofturn|]\n"),
}
GRANITE = _any_role(
    "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>"
)

BUILTIN: Mapping[str, str] = {
    "bailing": _bailing("", "<role>ASSISTANT</role>"),
    "bailing-think": _bailing("", "<role>ASSISTANT</role><think>"),
    "bailing2": (
        "{%- if not messages or messages[0].role != 'system' -%}"
        "{{ '<role>SYSTEM</role>detailed thinking off<|role_end|>' }}{%- endif -%}"
        + _bailing("<|role_end|>", "<role>ASSISTANT</role>")
    ),
    "chatglm3": _any_role("<|", "|>\n ", "", "<|assistant|>", start="[gMASK]sop"),
    "chatglm4": _any_role("<|", "|>\n", "", "<|assistant|>\n", start="[gMASK]<sop>"),
    "chatml": _any_role("<|im_start|>", "\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "command-r": _by_role(
        {
            SYSTEM: ("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            USER: ("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            ASSISTANT: ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        },
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        content="trimmed",
    ),
    "deepseek": _by_role(
        {SYSTEM: ("", ""), USER: ("### Instruction:\n", "\n"), ASSISTANT: ("### Response:\n", "\n<|EOT|>\n")},
        "### Response:\n",
    ),
    "deepseek2": _by_role(
        {SYSTEM: ("", "\n\n"), USER: ("User: ", "\n\n"), ASSISTANT: ("Assistant: ", "<｜end▁of▁sentence｜>")},
        "Assistant:",
    ),
    "deepseek3": _by_role(
        {SYSTEM: ("", "\n\n"), USER: ("<｜User｜>", ""), ASSISTANT: ("<｜Assistant｜>", "<｜end▁of▁sentence｜>")},
        "<｜Assistant｜>",
    ),
    "deepseek-ocr": _each("{{ content }}"),
    "exaone3": _by_role(EXAONE, "[|assistant|]", content="trimmed"),
    "exaone4": _by_role({**EXAONE, TOOL: ("[|tool|]", "[|endofturn|]\n")}, "[|assistant|]", content="trimmed"),
    "exaone-moe": _by_role(
        {role: (f"<|{role}|>\n", "<|endofturn|>\n") for role in (SYSTEM, USER, ASSISTANT, TOOL)},
        "<|assistant|>\n",
        content="trimmed",
    ),
    "falcon3": _any_role("<|", "|>\n", "\n", "<|assistant|>\n"),
    "gemma": _held_system(
        "role != 'assistant'",
        '{{ "<start_of_turn>" ~ role ~ "\\n" ~ held ~ trimmed ~ "<end_of_turn>\\n" }}',
        '{{ "<start_of_turn>model\\n" ~ trimmed ~ "<end_of_turn>\\n" }}',
        "<start_of_turn>model\n",
        system="trimmed",
    ),
    "gigachat": _each(
        "{%- if loop.first -%}{{ '<s>' }}{%- endif -%}"
        "{%- if role == 'system' and loop.first -%}{{ content ~ '<|message_sep|>' }}"
        "{%- elif role == 'user' -%}{{ 'user<|role_sep|>' ~ content ~ '<|message_sep|>'"
        " ~ 'available functions<|role_sep|>[]<|message_sep|>' }}"
        "{%- elif role == 'assistant' -%}{{ 'assistant<|role_sep|>' ~ content ~ '<|message_sep|>' }}{%- endif -%}",
        "assistant<|role_sep|>",
    ),
    "glmedge": _any_role("<|", "|>\n", "", "<|assistant|>"),
    "gpt-oss": _each(
        "{{ '<|start|>' ~ role ~ '<|message|>' ~ content ~ ('<|return|>' if role == 'assistant' else '<|end|>') }}",
        "<|start|>assistant",
    ),
    "granite": GRANITE,
    "granite-4.0": GRANITE,
    "granite-4.1": GRANITE,
    "grok-2": _each(
        '{%- if role == "system" -%}{{ "System: " ~ trimmed ~ "<|separator|>\\n\\n" }}'
        '{%- elif role == "user" -%}{{ "Human: " ~ trimmed ~ "<|separator|>\\n\\n" }}'
        '{%- elif role == "assistant" -%}{{ "Assistant: " ~ content ~ "<|separator|>\\n\\n" }}{%- endif -%}',
        "Assistant:",
    ),
    "hunyuan-dense": _each(
        "{%- if role == 'system' and loop.first -%}{{ content ~ '<｜hy_place▁holder▁no▁3｜>' }}"
        "{%- elif role == 'assistant' -%}{{ '<｜hy_Assistant｜>' ~ content ~ '<｜hy_place▁holder▁no▁2｜>' }}"
        "{%- elif role == 'user' -%}{{ '<｜hy_User｜>' ~ content ~ '<｜hy_Assistant｜>' }}{%- endif -%}"
    ),
    "hunyuan-moe": _by_role(
        {
            SYSTEM: ("<|startoftext|>", "<|extra_4|>"),
            ASSISTANT: ("", "<|eos|>"),
            OTHER: ("<|startoftext|>", "<|extra_0|>"),
        }
    ),
    "hunyuan-vl": _each(
        "{%- if role == 'system' and loop.first -%}{{ content ~ '<｜hy_place▁holder▁no▁3｜>' }}"
        "{%- elif role == 'user' -%}{{ content ~ '<｜hy_User｜>' }}"
        "{%- elif role == 'assistant' -%}{{ content ~ '<｜hy_Assistant｜>' }}{%- endif -%}",
        start="<｜hy_begin▁of▁sentence｜>",
    ),
    "kimi-k2": _by_role(
        {
            SYSTEM: ("<|im_system|>system<|im_middle|>", "<|im_end|>"),
            USER: ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
            ASSISTANT: ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"),
            TOOL: ("<|im_system|>tool<|im_middle|>", "<|im_end|>"),
            OTHER: ("", "<|im_end|>"),
        },
        "<|im_assistant|>assistant<|im_middle|>",
    ),
    "llama2": _llama2('text ~ "\\n"'),
    "llama2-sys": _llama2(SYS),
    "llama2-sys-bos": _llama2(SYS, again="<s>[INST] "),
    "llama2-sys-strip": _llama2(SYS, content="trimmed"),
    "llama3": _any_role(
        "<|start_header_id|>",
        "<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        content="trimmed",
    ),
    "llama4": _any_role(
        "<|header_start|>",
        "<|header_end|>\n\n",
        "<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n",
        content="trimmed",
    ),
    "megrez": _any_role("<|role_start|>", "<|role_end|>", "<|turn_end|>", "<|role_start|>assistant<|role_end|>"),
    "minicpm": _by_role({USER: ("<用户>", "<AI>"), OTHER: ("", "")}, content="trimmed"),
    "mistral-v1": _mistral(" ", " "),
    "mistral-v3": _mistral("", " ", answer="trimmed"),
    "mistral-v3-tekken": _mistral("", ""),
    "mistral-v7": _by_role(
        {SYSTEM: ("[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"), USER: ("[INST] ", "[/INST]"), OTHER: (" ", "</s>")}
    ),
    "mistral-v7-tekken": _by_role(
        {SYSTEM: ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), USER: ("[INST]", "[/INST]"), OTHER: ("", "</s>")}
    ),
    "monarch": _each(
        '{%- if not loop.first -%}{{ "<s>" }}{%- endif -%}{{ role ~ "\\n" ~ content ~ "</s>\\n" }}', "<s>assistant\n"
    ),
    "openchat": _each(
        "{%- if role == 'system' -%}{{ content ~ '<|end_of_turn|>' }}"
        "{%- else -%}{{ 'GPT4 Correct ' ~ role | capitalize ~ ': ' ~ content ~ '<|end_of_turn|>' }}{%- endif -%}",
        "GPT4 Correct Assistant:",
    ),
    "orion": _held_system(
        "role == 'user'",
        '{{ "Human: " ~ held ~ content ~ "\\n\\nAssistant: </s>" }}',
        "{{ content ~ '</s>' }}",
    ),
    "pangu-embedded": _each(
        "{%- if loop.first and role != 'system' -%}{{ '[unused9]系统：[unused10]' }}{%- endif -%}"
        "{%- set names = {'system': '系统', 'user': '用户', 'assistant': '助手',"
        " 'tool': '工具', 'function': '方法'} -%}"
        "{%- if role in names -%}{{ '[unused9]' ~ names[role] ~ '：' ~ content ~ '[unused10]' }}{%- endif -%}",
        "[unused9]助手：",
    ),
    "phi3": _any_role("<|", "|>\n", "<|end|>\n", "<|assistant|>\n"),
    "phi4": _any_role("<|im_start|>", "<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "rwkv-world": _each(
        '{%- if role == "system" -%}{{ "System: " ~ trimmed ~ "\\n\\n" }}'
        '{%- elif role == "user" -%}{{ "User: " ~ trimmed ~ "\\n\\n" ~ ("Assistant:" if loop.last else "") }}'
        '{%- elif role == "assistant" -%}{{ "Assistant: " ~ trimmed ~ "\\n\\n" }}{%- endif -%}'
    ),
    "seed_oss": _each(
        '{{ "<seed:bos>" ~ role ~ "\\n" ~ (trimmed if role == "assistant" else content) ~ "<seed:eos>" }}',
        "<seed:bos>assistant\n",
    ),
    "smolvlm": _by_role(
        {
            SYSTEM: ("", "\n\n"),
            USER: ("User: ", "<end_of_utterance>\n"),
            OTHER: ("Assistant: ", "<end_of_utterance>\n"),
        },
        "Assistant:",
        start="<|im_start|>",
    ),
    "solar-open": _any_role("<|begin|>", "<|content|>", "<|end|>", "<|begin|>assistant"),
    "vicuna": _by_role(
        {SYSTEM: ("", "\n\n"), USER: ("USER: ", "\n"), ASSISTANT: ("ASSISTANT: ", "</s>\n")}, "ASSISTANT:"
    ),
    "vicuna-orca": _by_role(
        {SYSTEM: ("SYSTEM: ", "\n"), USER: ("USER: ", "\n"), ASSISTANT: ("ASSISTANT: ", "</s>\n")}, "ASSISTANT:"
    ),
    "yandex": _by_role({USER: (" Пользователь: ", "\n\n"), ASSISTANT: (" Ассистент: ", "\n\n")}, " Ассистент:[SEP]"),
    "zephyr": _any_role("<|", "|>\n", "<|endoftext|>\n", "<|assistant|>\n"),
}
"""Name -> Jinja source."""
