"""Models that play a part. No weights, no luck: `Part` calls one tool, reads the result, and says what it found;
`Told` answers what the user's message tells it to.

They write calls as Hermes models do, and everything around them is real: template, format, grammar, engine, server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np

from minka.chat.formats.find import find_format
from minka.engine.engine import Engine, EngineConfig
from minka.grammar.compiler import Grammars
from minka.native.model import Model
from minka.native.protocol import Logits
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


SHORTEST = -1
"""In place of a token: what ends soonest, of what the constraint allows."""


class Player(Protocol):
    """Who writes."""

    def script(self, tokens: Sequence[int]) -> int:
        """The next token, or SHORTEST."""


def call_of(tool: str, **arguments: object) -> str:
    """A call as the models write it."""
    return "<tool_call>\n" + json.dumps({"name": tool, "arguments": arguments}) + "\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Part:
    """What the model does: the call that it makes, and the word it looks for in the result. `title` is what it answers
    where there are no tools."""

    tool: str
    arguments: Mapping[str, object]
    word: str
    title: str = "A short title"

    @property
    def call(self) -> str:
        """The call as the model writes it."""
        return call_of(self.tool, **self.arguments)

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
        answer = (self.answer(prompt) if has_tools else self.title).encode()
        return answer[len(written)] if len(written) < len(answer) else EOS


def told(*answers: str) -> str:
    """A user's message that tells the model what to answer, turn by turn. An answer that ends in `~` goes on with what
    its constraint allows, as short as can be."""
    return "[play] " + " || ".join(answers)


@dataclass(frozen=True, slots=True)
class Told:
    """A model that answers what the last such message tells it to."""

    def script(self, tokens: Sequence[int]) -> int:
        """The next token."""
        text = bytes(token for token in tokens if token < 256)
        prompt, _, written = text.rpartition(HEADER)
        _, found, after = prompt.rpartition(b"[play] ")
        answers = after.partition(b"<|im_end|>")[0].split(b" || ") if found else [b"Nobody told me."]
        answer = answers[min(after.count(HEADER), len(answers) - 1)].strip(b"\n")
        said = answer.removesuffix(b"~")
        if len(written) < len(said):
            return said[len(written)]
        return EOS if answer == said else SHORTEST


_RANKS = (EOS, *b']}",:10a. ')


class _Scripted(FakeBackend):
    """What ends soonest is not one token: it depends on what the constraint allows."""

    def _row(self, tokens: Sequence[int]) -> Logits:
        if self.script(tokens) != SHORTEST:
            return super()._row(tokens)
        row = np.full(self.vocab.n_tokens, -20.0, dtype=np.float32)
        for rank, token in enumerate(_RANKS):
            row[token] = 12.0 - rank
        written = bytes(token for token in tokens if token < 256).rpartition(HEADER)[2]
        if written.count(b'"') % 2:
            row[ord('"')] = 20.0
        return row


def scripted_runtime(player: Player) -> Runtime:
    """A runtime whose model the player is."""
    backend = _Scripted(player.script, n_ctx=400_000, n_batch=4096)
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
