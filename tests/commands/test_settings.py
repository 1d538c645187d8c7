"""From a command line to the settings of a model: what flags mean together."""

from __future__ import annotations

import shlex

import pytest

from minka.commands import chat, serve
from minka.commands.arguments import Parser, resolve
from minka.commands.settings import settings
from minka.errors import UsageError
from minka.params import EmbeddingParams, ServerParams
from minka.runtime import Settings


def serving(line: str) -> Settings:
    parser = Parser(prog="minka serve")
    serve.configure(parser)
    args = parser.parse_args(shlex.split(line))
    return settings(args, resolve(args, ServerParams, {}))


def chatting(line: str) -> Settings:
    parser = Parser(prog="minka chat")
    chat.configure(parser)
    return settings(parser.parse_args(shlex.split(line)))


def test_by_default_nothing_is_shifted_moved_or_slowed_down() -> None:
    made = serving("")
    assert (made.engine.shifts, made.engine.reuses, made.engine.deterministic) == (False, False, False)
    assert made.context.kv_unified is None


def test_positions_can_be_changed_where_the_command_line_says_so() -> None:
    made = serving("--context-shift --cache-reuse 256 --keep -1")
    assert (made.engine.shifts, made.engine.reuses) == (True, True)
    assert (made.generation.n_cache_reuse, made.generation.n_keep) == (256, -1)
    assert not serving("--context-shift --no-context-shift --cache-reuse 0").engine.shifts
    assert chatting("--context-shift --keep 5").generation.n_keep == 5


@pytest.mark.parametrize(("line", "slots"), [("", -1), ("-np 8", 8), ("-np 8 -no-kvu", 8)])
def test_deterministic_gives_each_slot_a_buffer(line: str, slots: int) -> None:
    made = serving(f"--deterministic {line}")
    assert (made.engine.deterministic, made.context.kv_unified, made.context.parallel) == (True, False, slots)


def test_who_chats_alone_has_the_whole_context() -> None:
    made = chatting("--deterministic")
    assert (made.context.kv_unified, made.context.parallel) == (False, 1)


def test_deterministic_in_a_common_buffer_is_refused() -> None:
    with pytest.raises(UsageError, match="--deterministic and --kv-unified exclude each other"):
        serving("--deterministic -kvu")


def test_only_a_server_embeds() -> None:
    made = serving("--reranking --pooling cls --embd-normalize -1")
    assert made.embedding == EmbeddingParams(rerank=True, pooling="cls", embd_normalize=-1)
    assert serving("").embedding == EmbeddingParams()
    assert chatting("").embedding is None


def test_a_verbose_server_adds_the_native_answer() -> None:
    assert serving("-v").generation.verbose
    assert not serving("").generation.verbose
