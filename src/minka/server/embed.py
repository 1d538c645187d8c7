"""The path that embeddings and reranking take: decode, compute, answer. Knows no protocol and no model."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from minka.protocols.body import decode_json
from minka.protocols.exchange import encode
from minka.protocols.vectors import DecodeTexts
from minka.runtime import Runtime
from minka.server.endpoint import with_headers
from minka.server.wire import JsonResponse, read_body
from minka.types import EmbedJob, Vectors


async def embed(request: Request, runtime: Runtime, decode: DecodeTexts) -> Response:
    """Answer a request for vectors. A client that goes away takes it back."""
    body = with_headers(decode_json(await read_body(request)), request.headers)
    texts = await asyncio.to_thread(decode, body, runtime.served)
    vectors = await _computed(_of_client(texts.job, request), runtime, request)
    # Thousands of numbers as text take a while, in which the loop has other clients.
    raw = await asyncio.to_thread(lambda: encode(texts.answer(vectors)))
    return Response(raw, media_type=JsonResponse.media_type)


def _of_client(job: EmbedJob, request: Request) -> EmbedJob:
    """The job with whose turn it takes, and within the server's time limit."""
    limit = request.app.state.minka.params.request_timeout * 1000
    tenant = request.scope.get("state", {}).get("tenant", "")
    timeout = min(limit, job.timeout_ms) if limit and job.timeout_ms >= 0 else limit or job.timeout_ms
    return replace(job, tenant=tenant, timeout_ms=timeout)


async def _computed(job: EmbedJob, runtime: Runtime, request: Request) -> tuple[Vectors, ...]:
    order = await asyncio.to_thread(runtime.engine.embed, job)  # it looks at every token
    reply = asyncio.wrap_future(order)
    gone = asyncio.create_task(_gone(request))
    try:
        either: list[asyncio.Future[tuple[Vectors, ...]] | asyncio.Future[None]] = [reply, gone]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise ClientDisconnect
        return reply.result()
    finally:
        gone.cancel()
        order.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
