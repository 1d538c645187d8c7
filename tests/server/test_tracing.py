"""Spans of requests. The provider is one of the OpenTelemetry SDK that keeps them in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from minka.params import ServerParams
from minka.server import tracing
from tests.fakes import FakeBackend
from tests.server.site import CHAT, MESSAGES, Site, fake_runtime

pytest.importorskip("opentelemetry.sdk", reason="the OpenTelemetry SDK is not installed")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def site(fake_backend: Callable[..., FakeBackend]) -> Iterator[Site]:
    with Site(ServerParams(), fake_runtime(fake_backend())) as made:
        yield made


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[ReadableSpan, ...]]:
    """The spans that were recorded, by a provider that is configured for this test."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter.get_finished_spans


def test_a_request_is_a_span_with_its_parts(site: Site, spans: Callable[[], tuple[ReadableSpan, ...]]) -> None:
    parent = f"00-{TRACE_ID}-{SPAN_ID}-01"
    body = {"messages": MESSAGES, "max_tokens": 3}
    answer = site.post(CHAT, body, traceparent=parent, x_request_id="mine").json()
    queue, prefill, decode, whole = spans()
    assert [span.name for span in (queue, prefill, decode, whole)] == ["queue", "prefill", "decode", "llm_request"]
    assert whole.parent is not None
    assert (f"{whole.parent.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)
    assert all(part.parent == whole.get_span_context() for part in (queue, prefill, decode))
    ends = [whole.start_time, queue.end_time, prefill.end_time, decode.end_time]
    assert [queue.start_time, prefill.start_time, decode.start_time, whole.end_time] == ends
    facts = dict(whole.attributes or {})
    assert str(facts.pop("gen_ai.response.id")).startswith(answer["id"])
    assert facts == {
        "gen_ai.request.model": "fake.gguf",
        "gen_ai.response.finish_reasons": ("limit",),
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 3,
        "url.path": CHAT,
        "minka.request_id": "mine",
    }
    assert dict(decode.attributes or {}) == {"minka.tokens": 3}
    assert dict(prefill.attributes or {}) == {
        "minka.tokens": answer["usage"]["prompt_tokens"],
        "minka.cached_tokens": 0,
    }


def test_each_completion_of_a_request_and_of_a_stream_has_a_span(
    site: Site, spans: Callable[[], tuple[ReadableSpan, ...]]
) -> None:
    site.post(CHAT, {"messages": MESSAGES, "max_tokens": 3, "n": 2, "stream": True})
    assert [span.name for span in spans()].count("llm_request") == 2


def test_without_a_provider_or_the_package_there_are_no_spans(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = {"type": "http", "path": "/x", "headers": []}
    assert tracing.trace_of(scope, "m", "id") is None
    monkeypatch.setattr(tracing, "_INSTALLED", False)
    assert tracing.trace_of(scope, "m", "id") is None
    assert site.post(CHAT, {"messages": MESSAGES, "max_tokens": 1}).status_code == 200
