from __future__ import annotations

import pytest

from minka.errors import RequestError
from minka.protocols.tokens import apply_template, count_input_tokens, detokenize, tokenize
from tests.fakes import BOS, EOS, FakeVocab
from tests.protocols.values import made_served

SERVED = made_served(FakeVocab(["ü".encode()[:1], b"th"], add_bos=True))
HALF, TH = 259, 260
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"content": "ab"}, [97, 98]),
        ({"content": "ab", "add_special": True}, [BOS, 97, 98]),
        ({"content": "a</s>"}, [97, EOS]),
        ({"content": "</s>", "parse_special": False}, [60, 47, 115, 62]),
        ({"content": ["a", 3, "th"], "add_special": True}, [BOS, 97, 3, TH]),
        ({"content": [3, "a"], "add_special": True}, [3, 97]),
        ({"content": ""}, []),
        ({"content": None}, []),
        ({}, []),
    ],
)
def test_content_becomes_ids(body: dict[str, object], tokens: list[int]) -> None:
    assert tokenize(body, SERVED) == {"tokens": tokens}


def test_pieces_are_text_or_bytes() -> None:
    assert tokenize({"content": "ath", "with_pieces": True}, SERVED) == {
        "tokens": [{"id": 97, "piece": "a"}, {"id": TH, "piece": "th"}]
    }
    assert tokenize({"content": [HALF, EOS], "with_pieces": True}, SERVED) == {
        "tokens": [{"id": HALF, "piece": [195]}, {"id": EOS, "piece": "</s>"}]
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"content": 7}, "content"),
        ({"content": {}}, "content"),
        ({"content": ["a", -1]}, "content[1]"),
        ({"content": [999]}, "content[0]"),
        ({"content": [[97]]}, "content[0]"),
        ({"content": "a", "add_special": "yes"}, "add_special"),
        ({"content": "a", "parse_special": 1}, "parse_special"),
        ({"content": "a", "with_pieces": 0}, "with_pieces"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ({"messages": "hi"}, "messages"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_by_its_path(body: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        tokenize(body, SERVED)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "tokens", "spelled"),
    [
        ({"prompt": "ab"}, [BOS, 97, 98], None),
        ({"prompt": "a", "add_special_tokens": False}, [97], None),
        ({"prompt": "", "return_token_strs": True}, [BOS], ["<s>"]),
        ({"messages": MESSAGES, "add_generation_prompt": False}, None, None),
    ],
)
def test_vllms_names_get_vllms_answer(body: dict[str, object], tokens: list[int] | None, spelled: object) -> None:
    answer = tokenize(body, SERVED)
    assert isinstance(answer, dict)
    assert list(answer) == ["count", "max_model_len", "tokens", "token_strs"]
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), SERVED.n_ctx)
    assert answer["token_strs"] == spelled
    if tokens is not None:
        assert answer["tokens"] == tokens
    else:
        whole = tokenize({"prompt": "<|im_start|>user\nhi<|im_end|>\n"}, SERVED)
        assert isinstance(whole, dict)
        assert answer["tokens"] == whole["tokens"]


def test_ids_become_text_again() -> None:
    assert detokenize({"tokens": [BOS, 97, TH]}, SERVED) == {"content": "<s>ath", "prompt": "<s>ath"}
    assert detokenize({"tokens": [HALF]}, SERVED) == {"content": "\ufffd", "prompt": "\ufffd"}
    assert detokenize({}, SERVED) == detokenize({"tokens": None}, SERVED) == {"content": "", "prompt": ""}


@pytest.mark.parametrize(
    ("tokens", "param"),
    [("ab", "tokens"), (7, "tokens"), ([97, 999], "tokens[1]"), ([-1], "tokens[0]"), ([True], "tokens[0]")],
)
def test_what_is_no_list_of_ids_is_refused(tokens: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        detokenize({"tokens": tokens}, SERVED)
    assert caught.value.param == param


def test_the_template_is_applied_and_its_tokens_are_counted() -> None:
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert apply_template({"messages": MESSAGES}, SERVED) == {"prompt": prompt}
    assert count_input_tokens({"messages": MESSAGES}, SERVED) == {
        "input_tokens": len(prompt) + 1,
        "object": "response.input_tokens",
    }
