"""Short chat templates, one of each shape that models come with, and the conversations they are tried on."""

from __future__ import annotations

from datetime import UTC, datetime

from minka.chat.template import ChatTemplate

NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)

STRING_ONLY = """\
{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m['content'] + '' }}</{{ m.role }}>
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""

TYPED_ONLY = """\
{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part['text'] }}|{% endfor %}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""

BOTH = """\
{% for m in messages %}<{{ m.role }}>
{%- if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}+{% endfor %}{% endif %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""

NO_SYSTEM = """\
{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for m in messages %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
<{{ m.role }}>{{ m.content + '' }}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""

TOOLS = """\
{% if tools %}TOOLS {{ tools | tojson }}
{% endif %}
{% for m in messages %}
{% if m.role == 'tool' %}RESULT {{ m.tool_call_id }} {{ m.content }}
{% elif m.tool_calls %}{% for c in m.tool_calls %}CALL {{ c.id }} {{ c.function.name }}(
{%- for key, value in c.function.arguments.items() %}{{ key }}={{ value }}{% endfor %})
{% endfor %}
{% else %}<{{ m.role }}>{{ m.content + '' }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""

STRING_ARGUMENTS = TOOLS.replace(
    "{%- for key, value in c.function.arguments.items() %}{{ key }}={{ value }}{% endfor %}",
    "{{- c.function.arguments + '' }}",
)

CALLS_ONLY = TOOLS.replace("{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}\n", "")

ONE_CALL = TOOLS.replace(
    "{% for c in m.tool_calls %}",
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call only') }}{% endif %}{% for c in m.tool_calls %}",
)

SHORT_IDS = TOOLS.replace(
    "CALL {{ c.id }}",
    "CALL {% if c.id | length != 9 %}{{ raise_exception('ids need nine characters') }}{% endif %}{{ c.id }}",
)

THINKING = """\
{% for m in messages %}<|{{ m.role }}|>
{% if m.role == 'assistant' and m.reasoning_content and (preserve_thinking or loop.last) %}<think>
{{ m.reasoning_content }}
</think>
{% endif %}{{ m.content + '' }}<|end|>
{% endfor %}
{% if reasoning_effort is defined %}effort={{ reasoning_effort }}/{{ reasoning_strength }}
{% endif %}
{% if add_generation_prompt %}<|assistant|>
{% if not enable_thinking %}<think>

</think>
{% endif %}{% endif %}"""

OPENS_THINKING = """\
{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}
{% if add_generation_prompt %}<|assistant|><think>
{% endif %}"""

THINKING_FIELD = """\
{% for m in messages %}
<|{{ m.role }}|>{% if m.thinking %}[{{ m.thinking }}]{% endif %}{{ m.content + '' }}
{% endfor %}"""

THINKING_PART = """\
{% for m in messages %}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}
{% if p.type == 'thinking' %}[{{ p.thinking }}]{% else %}{{ p.text }}{% endif %}
{% endfor %}{% endif %}
{% endfor %}"""

GPT_OSS_CHECK = (
    '<|channel|>{% for message in messages %}{%- if "<|channel|>analysis<|message|>" in message.content or '
    '"<|channel|>final<|message|>" in message.content %}{{ raise_exception("no") }}{% endif %}{% endfor %}ok'
)

MISTRAL_CHECK = (
    "[TOOL_CALLS]{% for message in messages %}{%- if (message['content'] is none or message['content'] == '' or "
    "message['content']|length == 0) and (message['tool_calls'] is not defined or message['tool_calls'] is none or "
    "message['tool_calls']|length == 0) %}{{ raise_exception('no') }}{% endif %}{% endfor %}ok"
)

CHANNELS = """\
{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}
{%- if m.thinking and m.content and m.tool_calls %}{{ raise_exception('both') }}{% endif %}
{%- if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}
<|channel|>final{% endif %}<|message|>{{ m.content }}{% for c in m.tool_calls or [] %}
{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}<|end|>{% endfor %}
{% if add_generation_prompt %}<|start|>assistant{% endif %}"""

LOOP_CONTROLS = """\
{% for m in messages %}
{% if m.role == 'system' %}{% continue %}{% endif %}
{{ m.content }}
{% if loop.index == 2 %}{% break %}{% endif %}
{% endfor %}"""

GENERATION = """\
{% for m in messages %}
{% if m.role == 'assistant' %}A:{% generation %}{{ m.content + '' }}{% set seen = true %}{% endgeneration %}
{{ seen is defined }}
{% else %}Q:{{ m.content }}
{% endif %}
{% endfor %}"""

QUEUE = """\
{% set queue = namespace(ids=[]) %}
{% for m in messages %}
{% for c in m.tool_calls or [] %}{% set _ = queue.ids.append(c.function.arguments | tojson) %}{% endfor %}
{% if m.role == 'tool' %}{{ queue.ids.pop(0) }} -> {{ m.content }}
{% endif %}
{% endfor %}"""

DATES = "{{ date_string }}|{{ datetime }}|{{ strftime_now('%Y-%m-%d') }}"

WEATHER: dict[str, object] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}


def template(source: str, *, tool_use: str | None = None, add_bos: bool = False, add_eos: bool = False) -> ChatTemplate:
    """A template with the tokens `<s>` and `</s>`, at a fixed time."""
    return ChatTemplate(
        source,
        bos_token="<s>",
        eos_token="</s>",
        tool_use_source=tool_use,
        add_bos=add_bos,
        add_eos=add_eos,
        clock=lambda: NOW,
    )
