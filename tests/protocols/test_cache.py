from __future__ import annotations

import pytest

from minka.errors import RequestError
from minka.protocols.cache import cache_object, decode_pin
from minka.types import CacheView, Finished, FinishReason, PinView, Priority, TierView, Timings
from tests.fakes import BOS, FakeVocab
from tests.protocols.values import at, made_served

SERVED = made_served()
SYSTEM = {"role": "system", "content": "Be brief."}
RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n"


def prefix(**body: object) -> str:
    (job,) = decode_pin({"name": "a", **body}, SERVED).jobs
    return bytes(job.prompt).decode()


def test_a_pin_is_a_job_that_generates_nothing_and_comes_last() -> None:
    (job,) = decode_pin({"name": "a", "prompt": "Once upon a time", "cache_salt": "me"}, SERVED).jobs
    assert (job.pin, job.n_predict, job.priority, job.cache_salt) == ("a", 0, Priority.LOW, "me")
    assert job.cache_prompt
    assert bytes(job.prompt) == b"Once upon a time"


@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99], ["ab", 99, "d"], {"prompt_string": "abc"}])
def test_a_prompt_has_every_form(prompt: object) -> None:
    assert prefix(prompt=prompt).startswith("abc")


def test_a_prompt_begins_as_one_of_a_completion_does() -> None:
    served = made_served(FakeVocab(add_bos=True))
    (job,) = decode_pin({"name": "a", "prompt": "abc"}, served).jobs
    assert job.prompt[0] == BOS


def test_messages_end_where_those_that_follow_begin() -> None:
    assert prefix(messages=[SYSTEM]) == RENDERED
    assert prefix(messages=[SYSTEM], add_generation_prompt=None) == RENDERED
    assert prefix(messages=[SYSTEM], add_generation_prompt=False) == RENDERED
    assert prefix(messages=[SYSTEM], add_generation_prompt=True) == RENDERED + "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "abc"}, "name"),
        ({"name": "", "prompt": "abc"}, "name"),
        ({"name": "a/b", "prompt": "abc"}, "name"),
        ({"name": "a\n", "prompt": "abc"}, "name"),
        ({"name": "x" * 65, "prompt": "abc"}, "name"),
        ({"name": 7, "prompt": "abc"}, "name"),
        ({"name": "a"}, "prompt"),
        ({"name": "a", "prompt": None, "messages": None}, "prompt"),
        ({"name": "a", "prompt": "abc", "messages": [SYSTEM]}, "prompt"),
        ({"name": "a", "prompt": ["abc", "def"]}, "prompt"),
        ({"name": "a", "prompt": 3}, "prompt"),
        ({"name": "a", "messages": []}, "messages"),
        ({"name": "a", "messages": [SYSTEM], "add_generation_prompt": 3}, "add_generation_prompt"),
        ({"name": "a", "prompt": "abc", "cache_salt": 3}, "cache_salt"),
        ({"name": "a", "prompt": "abc", "lora": [{"id": 0}]}, "lora"),
    ],
)
def test_what_is_no_pin_is_refused_by_its_field(body: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_pin(body, SERVED)
    assert caught.value.param == param


def test_the_answer_says_what_had_to_be_computed() -> None:
    exchange = decode_pin({"name": "a", "prompt": "Once upon a time"}, SERVED)
    (job,) = exchange.jobs
    end = Finished(job.id, 0, FinishReason.LIMIT, "", Timings(cache_n=10, prompt_n=6))
    exchange.add(end)
    assert exchange.whole() == {"name": "a", "n_tokens": 16, "n_cached": 10}
    assert [*exchange.frames(end), *exchange.last_frames()] == []


def test_tiers_on_the_wire() -> None:
    device = TierView("device", 1, 2, None, 512, 3, 4)
    ram = TierView("ram", 5, 6, 7, None, 8, 9)
    body = cache_object(CacheView(whole=False, tiers=(device, ram), pins=(PinView("a", 16, 1024),)))
    assert body == {
        "kind": "blocks",
        "tiers": {
            "device": {"entries": 1, "tokens": 2, "limit_tokens": 512, "hits": 3, "tokens_served": 4},
            "ram": {"entries": 5, "tokens": 6, "bytes": 7, "limit_bytes": None, "hits": 8, "tokens_served": 9},
        },
        "pins": [{"name": "a", "n_tokens": 16, "bytes": 1024}],
    }
    assert at(cache_object(CacheView(whole=True, tiers=(), pins=())), "kind") == "states"
