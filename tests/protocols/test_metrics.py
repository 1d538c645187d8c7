from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from minka.engine.metrics import Meters
from minka.protocols.metrics import HISTOGRAMS, METRICS, Metric, Scrape, metrics_text
from minka.types import (
    CacheView,
    Cancelled,
    Counters,
    EngineView,
    Event,
    Finished,
    FinishReason,
    PinView,
    SlotView,
    TierView,
    Timings,
    Token,
)

COUNTERS = Counters(
    prompt_tokens=120,
    cached_tokens=30,
    recalled_tokens=20,
    predicted_tokens=50,
    predicted_steps=40,
    prompt_seconds=1.5,
    predicted_seconds=2.0,
    decode_calls=20,
    graphs_reused=17,
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


def token(id: str, predicted_ms: float) -> Token:
    return Token(id, 0, 65, "A", Timings(predicted_ms=predicted_ms))


def finished(id: str, reason: FinishReason, timings: Timings) -> Finished:
    return Finished(id, 0, reason, "", timings)


EVENTS: tuple[Event, ...] = (
    token("a", 0.0),
    token("b", 0.0),
    token("a", 30.0),
    Cancelled("b"),
    token("a", 90.0),
    finished("a", FinishReason.EOS, Timings(2, 5, 40.0, 3, 90.0, queue_ms=300.0)),
    finished("c", FinishReason.LIMIT, Timings(0, 7, 10.0, 0, 0.0)),
)


def text_of(counters: Counters = COUNTERS, before: Counters | None = None, model: str = "tiny") -> str:
    slots = (slot(0, busy=True), slot(1, busy=False), slot(2, busy=True))
    cache = CacheView(whole=False, tiers=TIERS, pins=(PinView("a", 16, 64),))
    meters = Meters()
    for event in EVENTS:
        meters.observe(event)
    return metrics_text(Scrape(EngineView(slots, 4, counters, 70), cache, before or Counters(), meters.view(), model))


def scrape(before: Counters | None = None, counters: Counters = COUNTERS) -> dict[str, float]:
    """The samples of an answer by name and labels."""
    text = text_of(counters, before)
    assert text.endswith("\n")
    samples = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, value in samples}
    assert len(found) == len(samples), "a sample is there twice"
    return found


def plain(prefix: str) -> dict[str, float]:
    """The samples of a prefix, without it and without those of histograms."""
    mine = {name.removeprefix(prefix): value for name, value in scrape().items() if name.startswith(prefix)}
    return {name: value for name, value in mine.items() if not name.startswith(tuple(HISTOGRAMS))}


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
    assert plain("minka:") == {
        "queue_length": 4,
        "preemptions_total": 3,
        "graphs_reused_total": 17,
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
        "kv_usage_ratio": 70 / 512,
        'requests_total{reason="eos"}': 1,
        'requests_total{reason="limit"}': 1,
        'requests_total{reason="word"}': 0,
        'requests_total{reason="cancelled"}': 1,
        'requests_total{reason="failed"}': 0,
    }


def test_vllms_names_and_values() -> None:
    assert {name.replace('model_name="tiny"', ""): value for name, value in plain("vllm:").items()} == {
        "num_requests_running{}": 2,
        "num_requests_waiting{}": 4,
        "kv_cache_usage_perc{}": 70 / 512,
        "gpu_cache_usage_perc{}": 70 / 512,
        "num_preemptions_total{}": 3,
        "prompt_tokens_total{}": 150,
        "generation_tokens_total{}": 50,
        "prefix_cache_queries_total{}": 150,
        "prefix_cache_hits_total{}": 30,
        'request_success_total{,finished_reason="stop"}': 1,
        'request_success_total{,finished_reason="length"}': 1,
        'request_success_total{,finished_reason="abort"}': 1,
        'request_success_total{,finished_reason="error"}': 0,
    }


SUMS = {
    "time_to_first_token_seconds": (1, 0.34),
    "inter_token_latency_seconds": (2, 0.09),
    "request_time_per_output_token_seconds": (1, 0.045),
    "e2e_request_latency_seconds": (2, 0.44),
    "request_queue_time_seconds": (2, 0.3),
    "request_prefill_time_seconds": (2, 0.05),
    "request_decode_time_seconds": (1, 0.09),
    "request_prompt_tokens": (2, 14),
    "request_generation_tokens": (2, 3),
}


@pytest.mark.parametrize("name", SUMS)
def test_histograms_count_and_add_up(name: str) -> None:
    found = scrape()
    for prefix, labels in (("minka:", ""), ("vllm:", '{model_name="tiny"}')):
        count, total = found[f"{prefix}{name}_count{labels}"], found[f"{prefix}{name}_sum{labels}"]
        assert [count, total] == pytest.approx(SUMS[name])


def test_the_buckets_of_a_histogram_add_up_and_hold_what_is_no_more_than_their_bound() -> None:
    found = scrape()
    bucket = "minka:inter_token_latency_seconds_bucket"
    assert found[f'{bucket}{{le="0.025"}}'] == 0
    assert found[f'{bucket}{{le="0.05"}}'] == 1  # 30 ms
    assert found[f'{bucket}{{le="0.075"}}'] == found[f'{bucket}{{le="+Inf"}}'] == 2  # and 60 ms


def test_all_histograms_of_a_name_have_sorted_bounds_and_end_with_all() -> None:
    by_name: dict[str, list[str]] = {}
    for name in scrape():
        if match := re.fullmatch(r'(.*)_bucket\{(?:.*,)?le="(.*)"\}', name):
            by_name.setdefault(match[1], []).append(match[2])
    assert len(by_name) == 2 * len(SUMS) + 1
    for bounds in by_name.values():
        assert bounds[-1] == "+Inf"
        numbers = [float(bound) for bound in bounds]
        assert numbers == sorted(set(numbers))


def test_a_models_name_may_have_any_characters() -> None:
    assert r'vllm:num_requests_running{model_name="a\"b\\c\n"} 2' in text_of(model='a"b\\c\n').splitlines()


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
    assert re.fullmatch(r"(llamacpp|minka|vllm):[a-z][a-z_0-9]*", row.name)
    assert row.kind in ("counter", "gauge", "histogram")
    assert row.help
    assert "\n" not in row.help
    assert row.kind == "counter" or not row.name.endswith("_total")


def test_every_sample_follows_its_type_and_help() -> None:
    current = ""
    for line in text_of().splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == current
        else:
            assert re.fullmatch(
                rf'{current}(_bucket|_sum|_count)?({{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*}})? -?[0-9.e+-]+', line
            )


# -- what is written about them ----------------------------------------------------------------------------------------

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAME = re.compile(r"\b(?:llamacpp|minka|vllm):[a-z][a-z_0-9]*")
KINDS = {row.name: row.kind for row in METRICS}


def panels() -> list[dict[str, Any]]:
    return list(json.loads((DOCS / "grafana.json").read_text())["panels"])


@pytest.mark.parametrize(
    "panel", [panel for panel in panels() if panel["type"] != "row"], ids=lambda p: str(p["title"])
)
def test_a_panel_of_the_dashboard_asks_for_what_there_is(panel: dict[str, Any]) -> None:
    names = [name for target in panel["targets"] for name in NAME.findall(target["expr"])]
    assert names
    for name in names:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert KINDS.get(name) in ("counter", "gauge") or KINDS.get(base) == "histogram", f"there is no {name}"
    for target in panel["targets"]:
        for name in re.findall(r"rate\(([a-z0-9_:]+)", target["expr"]):
            assert name.endswith(("_total", "_bucket", "_sum", "_count")), f"{name} is no counter"


def test_the_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken = set[tuple[int, int]]()
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_page_names_all_of_them_and_no_other() -> None:
    page = (DOCS / "metrics.md").read_text()
    told = set(NAME.findall(page)) - {"minka:NAME", "vllm:NAME"}
    assert told <= set(KINDS)
    for name, kind in KINDS.items():
        assert (f"`{name.partition(':')[2]}`" if kind == "histogram" else name) in page or name in page, name
