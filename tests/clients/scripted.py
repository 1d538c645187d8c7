"""A model that plays a part: it calls one tool, reads the result, and says what it found. No weights, no luck.

It writes calls as Hermes models do, and everything around it is real: template, format, grammar, engine, server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from minka.chat.formats.find import find_format
from minka.engine.engine import Engine, EngineConfig
from minka.grammar.compiler import Grammars
from minka.native.model import Model
from minka.params import SamplingParams
from minka.runtime import Runtime
from tests.fakes import EOS, FakeBackend
from tests.protocols.values import made_served

TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools

<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>

To call one, write a JSON object within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

HEADER = b"<|im_start|>assistant\n"
WINDOW = 50_000
"""Bytes at the end of a prompt that the model looks at."""


@dataclass(frozen=True, slots=True)
class Part:
    """What the model does: the call that it makes, and the word it looks for in the result."""

    tool: str
    arguments: Mapping[str, object]
    word: str

    @property
    def call(self) -> str:
        """The call as the model writes it."""
        return "<tool_call>\n" + json.dumps({"name": self.tool, "arguments": dict(self.arguments)}) + "\n</tool_call>"

    def answer(self, prompt: bytes) -> str:
        """What the model writes to a prompt."""
        _, result, after = prompt.rpartition(b"<tool_response>")
        if result:
            return f"The word is {self.word}." if self.word.encode() in after else "There is no word."
        return self.call

    def script(self, tokens: Sequence[int]) -> int:
        """The next token."""
        text = bytes(token for token in tokens[-WINDOW:] if token < 256)
        prompt, _, written = text.rpartition(HEADER)
        has_tools = bytes(token for token in tokens[:200] if token < 256).find(b"<tools>") >= 0
        answer = self.answer(prompt).encode() if has_tools else b"A short title"
        return answer[len(written)] if len(written) < len(answer) else EOS


def scripted_runtime(part: Part) -> Runtime:
    """A runtime whose model plays the part."""
    backend = FakeBackend(part.script, n_ctx=400_000, n_batch=4096)
    grammars = Grammars(backend.vocab)
    served = made_served(
        backend.vocab,
        n_ctx=backend.n_ctx_seq,
        n_slots=backend.n_seq_max,
        template=TEMPLATE,
        sampling=SamplingParams(temperature=0.0),
    )
    served = replace(served, format=find_format(served.template), grammars=grammars)
    engine = Engine(backend, EngineConfig(queue_size=16), constraints=grammars)
    return Runtime(cast("Model", _NoModel()), engine, served)


class _NoModel:
    def close(self) -> None:
        """There is nothing to free."""
