from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGUFReader

from minka.errors import ModelError, UsageError
from minka.ggufs.metadata import parse_setting, rewrite
from minka.ggufs.read import open_gguf
from minka.ggufs.vocab import (
    Template,
    chat_template_edits,
    parse_template,
    special_token,
    special_token_keys,
    template_of_config,
)
from tests.ggufs.files import write_model, write_raw


def test_special_tokens_have_the_names_of_their_keys() -> None:
    keys = special_token_keys()
    assert keys["bos"] == "tokenizer.ggml.bos_token_id"
    assert keys["padding"] == "tokenizer.ggml.padding_token_id"
    assert "add_bos_token" not in keys


def test_a_special_token_by_text_or_id(model: Path) -> None:
    with open_gguf(model) as source:
        key, new = special_token(source, "eos", "long token with spaces")
        assert (key, new.value, new.type.name) == ("tokenizer.ggml.eos_token_id", 7, "UINT32")
        assert special_token(source, "eot", "é")[1].value == 6
        assert special_token(source, "unknown", 0)[1].value == 0


@pytest.mark.parametrize(
    ("name", "token", "message"),
    [
        ("bos", "nope", "has no token 'nope'"),
        ("bos", 8, "not within the 8 tokens"),
        ("bos", -1, "not within"),
        ("best", "b", "unknown special token 'best'"),
    ],
)
def test_special_tokens_that_cannot_be(model: Path, name: str, token: str | int, message: str) -> None:
    with open_gguf(model) as source, pytest.raises(UsageError, match=message):
        special_token(source, name, token)


def test_a_token_that_is_there_twice_is_named_by_its_id(model: Path, tmp_path: Path) -> None:
    with open_gguf(model) as source:
        rewrite(source, tmp_path / "twice.gguf", dict([parse_setting('tokenizer.ggml.tokens=[str]:["a","b","a"]')]))
    with open_gguf(tmp_path / "twice.gguf") as source, pytest.raises(UsageError, match="has the ids 0, 2"):
        special_token(source, "bos", "a")


def test_a_file_without_a_vocabulary(tmp_path: Path) -> None:
    with open_gguf(write_raw(tmp_path / "m.gguf")) as source, pytest.raises(ModelError, match="no list of tokens"):
        special_token(source, "bos", "a")


def _templates(path: Path, out: Path, template: Template) -> dict[str, object]:
    with open_gguf(path) as source:
        rewrite(source, out, chat_template_edits(source, template), force=True)
    return {name: field.contents() for name, field in GGUFReader(out).fields.items() if "chat_template" in name}


def test_one_template_replaces_all(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    named = [{"name": "default", "template": "D"}, {"name": "tool use", "template": "T"}]
    assert _templates(model, out, named) == {
        "tokenizer.chat_template": "D",
        "tokenizer.chat_template.tool_use": "T",
        "tokenizer.chat_templates": ["tool_use"],
    }
    again = tmp_path / "p.gguf"
    assert _templates(out, again, "{{ new }}") == {"tokenizer.chat_template": "{{ new }}"}


def test_a_template_is_added_where_there_was_none(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", template=None)
    assert _templates(path, tmp_path / "o.gguf", "{{ x }}") == {"tokenizer.chat_template": "{{ x }}"}


def test_templates_are_read_as_text_or_list(tmp_path: Path) -> None:
    assert parse_template("{% if x %}[{% endif %}") == "{% if x %}[{% endif %}"
    assert parse_template('[{"name": "default", "template": "D"}]') == [{"name": "default", "template": "D"}]
    for words in ("[not json", '["a"]'):
        with pytest.raises(UsageError):
            parse_template(words)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "{{ c }}"}))
    assert template_of_config(config) == "{{ c }}"
    config.write_text("{}")
    with pytest.raises(UsageError, match="chat_template in"):
        template_of_config(config)
    with pytest.raises(UsageError, match="cannot read"):
        template_of_config(tmp_path / "no.json")


def test_a_named_template_needs_both_parts(model: Path) -> None:
    with open_gguf(model) as source, pytest.raises(UsageError, match="needs entries"):
        chat_template_edits(source, [{"name": "x"}])
