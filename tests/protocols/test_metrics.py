from __future__ import annotations

import re

import pytest

from minka.protocols.metrics import METRICS, Metric, Scrape, metrics_text
from minka.types import CacheView, Counters, EngineView, PinView, SlotView, TierView

COUNTERS = Counters(
    prompt_tokens=120,
    cached_tokens=30,
    recalled_tokens=20,
    predicted_tokens=50,
    predicted_steps=40,
    prompt_seconds=1.5,
    predicted_seconds=2.0,
    decode_calls=20,
    busy_slots=30,
    preempted=3,
    n_tokens_max=99,
)
TIERS = (
    TierView("device", 1, 70, None, 512, 2, 10),
    TierView("ram", 4, 200, 8000, None, 1, 15),
    TierView("disk", 3, 150, 7000, 10_000, 1, 5),
)


def slot(id: int, *, busy: bool) -> SlotView:
    return SlotView(id, busy, None, 0, 0, 0, 0, 0, has_new_line=False, order=-1)


def scrape(before: Counters | None = None, counters: Counters = COUNTERS) -> dict[str, float]:
    """The samples of an answer by name and labels."""
    slots = (slot(0, busy=True), slot(1, busy=False), slot(2, busy=True))
    cache = CacheView(whole=False, tiers=TIERS, pins=(PinView("a", 16, 64),))
    text = metrics_text(Scrape(EngineView(slots, 4, counters, 70), cache, before or Counters()))
    assert text.endswith("\n")
    samples = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in samples}


def test_llama_servers_names_and_values() -> None:
    found = {name.removeprefix("llamacpp:"): value for name, value in scrape().items() if name.startswith("llamacpp:")}
    assert found == {
        "prompt_tokens_total": 120,
        "prompt_tokens_cached_total": 30,
        "prompt_seconds_total": 1.5,
        "tokens_predicted_total": 50,
        "tokens_predicted_seconds_total": 2,
        "n_decode_total": 20,
        "n_tokens_max": 99,
        "spec_decode_num_draft_tokens_total": 0,
        "spec_decode_num_accepted_tokens_total": 0,
        "spec_decode_num_drafts_total": 0,
        "prompt_tokens_seconds": 80,
        "predicted_tokens_seconds": 20,
        "requests_processing": 2,
        "requests_deferred": 4,
        "n_busy_slots_per_decode": 1.5,
    }


def test_our_own_names_and_values() -> None:
    found = {name.removeprefix("minka:"): value for name, value in scrape().items() if name.startswith("minka:")}
    assert found == {
        "queue_length": 4,
        "preemptions_total": 3,
        "kv_cells_used": 70,
        "kv_cells": 512,
        'cache_entries{tier="device"}': 1,
        'cache_entries{tier="ram"}': 4,
        'cache_entries{tier="disk"}': 3,
        'cache_tokens{tier="device"}': 70,
        'cache_tokens{tier="ram"}': 200,
        'cache_tokens{tier="disk"}': 150,
        'cache_bytes{tier="ram"}': 8000,
        'cache_bytes{tier="disk"}': 7000,
        'cache_limit_bytes{tier="disk"}': 10_000,
        'cache_hits_total{tier="device"}': 2,
        'cache_hits_total{tier="ram"}': 1,
        'cache_hits_total{tier="disk"}': 1,
        'cache_tokens_served_total{tier="device"}': 10,
        'cache_tokens_served_total{tier="ram"}': 15,
        'cache_tokens_served_total{tier="disk"}': 5,
        "cache_pins": 1,
    }


def test_a_rate_is_of_the_time_since_the_last_scrape() -> None:
    before = Counters(prompt_tokens=20, prompt_seconds=0.5, predicted_steps=30, predicted_seconds=1.5)
    found = scrape(before)
    assert found["llamacpp:prompt_tokens_seconds"] == 100
    assert found["llamacpp:predicted_tokens_seconds"] == 20
    nothing = scrape(COUNTERS)
    assert nothing["llamacpp:prompt_tokens_seconds"] == nothing["llamacpp:predicted_tokens_seconds"] == 0


def test_an_engine_that_did_nothing_yet() -> None:
    found = scrape(counters=Counters())
    assert found["llamacpp:n_busy_slots_per_decode"] == 0


def test_numbers_keep_their_digits() -> None:
    found = scrape(counters=Counters(prompt_tokens=2**53 - 1, prompt_seconds=0.1 + 0.2))
    assert found["llamacpp:prompt_tokens_total"] == 2**53 - 1
    assert found["llamacpp:prompt_seconds_total"] == 0.1 + 0.2


@pytest.mark.parametrize("row", METRICS, ids=lambda row: str(row.name))
def test_a_row_is_one_that_prometheus_takes(row: Metric) -> None:
    assert re.fullmatch(r"(llamacpp|minka):[a-z][a-z_]*", row.name)
    assert row.kind in ("counter", "gauge")
    assert row.help
    assert "\n" not in row.help
    assert row.kind == "counter" or not row.name.endswith("_total")


def test_every_sample_follows_its_type_and_help() -> None:
    text = metrics_text(
        Scrape(EngineView((), 0, COUNTERS, 0), CacheView(whole=False, tiers=TIERS, pins=()), Counters())
    )
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == current
        else:
            assert re.fullmatch(rf'{current}({{tier="[a-z]+"}})? -?[0-9.e+-]+', line)
