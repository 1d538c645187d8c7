"""OpenTelemetry spans of requests: how long each waited for a slot, had its prompt computed, and generated.

The only file that knows OpenTelemetry, which is optional. Spans are made if its API is installed and a provider is
configured, as `opentelemetry-instrument minka serve ...` does; nothing is sent by Minka itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from starlette.datastructures import Headers
from starlette.types import Scope

from minka.types import Finished
from minka.version import VERSION

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context, get_current
    from opentelemetry.util.types import Attributes
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True


class Trace:
    """Makes the spans of one request's jobs, inside the span that the client named in `traceparent`, if any."""

    def __init__(self, scope: Scope, model: str, request_id: str) -> None:
        self._model, self._path, self._request_id = model, str(scope["path"]), request_id
        inside = trace.get_current_span().get_span_context().is_valid
        self._parent: Context = get_current() if inside else propagate.extract(dict(Headers(scope=scope)))
        self._tracer = trace.get_tracer_provider().get_tracer("minka", VERSION)

    def finished(self, event: Finished) -> None:
        """Record a job that has just ended: a span of all of it, and in it its parts, one after the other."""
        parts = list(_parts(event))
        at = time.time_ns() - sum(duration for _, duration, _ in parts)
        whole = self._tracer.start_span(
            "llm_request", self._parent, trace.SpanKind.SERVER, self._attributes(event), start_time=at
        )
        inside = trace.set_span_in_context(whole, self._parent)
        for name, duration, attributes in parts:
            part = self._tracer.start_span(name, inside, attributes=attributes, start_time=at)
            at += duration
            part.end(at)
        whole.end(at)

    def _attributes(self, event: Finished) -> Attributes:
        """By OpenTelemetry's names for generative models, where it has any."""
        timings = event.timings
        return {
            "gen_ai.request.model": self._model,
            "gen_ai.response.id": event.id,
            "gen_ai.response.finish_reasons": (event.reason.value,),
            "gen_ai.usage.input_tokens": timings.cache_n + timings.prompt_n,
            "gen_ai.usage.output_tokens": timings.predicted_n,
            "url.path": self._path,
            "minka.request_id": self._request_id,
        }


def _parts(event: Finished) -> Iterator[tuple[str, int, Attributes]]:
    """The parts of a job: name, nanoseconds, attributes."""
    timings = event.timings
    yield "queue", round(timings.queue_ms * 1e6), {}
    prompt = {"minka.tokens": timings.prompt_n, "minka.cached_tokens": timings.cache_n}
    yield "prefill", round(timings.prompt_ms * 1e6), prompt
    if timings.predicted_n:
        yield "decode", round(timings.predicted_ms * 1e6), {"minka.tokens": timings.predicted_n}


def trace_of(scope: Scope, model: str, request_id: str) -> Trace | None:
    """The spans of a request, None if nobody wants any."""
    if not _INSTALLED or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return Trace(scope, model, request_id)
