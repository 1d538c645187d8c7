"""The path that embeddings and reranking take: decode, compute, answer. Knows no protocol and no model."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from minka.protocols.body import decode_json
from minka.protocols.exchange import encode
from minka.protocols.vectors import DecodeTexts
from minka.runtime import Runtime
from minka.server.client import reply_of, tenant_of, within_limit
from minka.server.endpoint import with_headers
from minka.server.wire import JsonResponse, read_body
from minka.types import EmbedJob


async def embed(request: Request, runtime: Runtime, decode: DecodeTexts) -> Response:
    """Answer a request for vectors. A client that goes away takes it back."""
    body = with_headers(decode_json(await read_body(request)), request.headers)
    texts = await asyncio.to_thread(decode, body, runtime.served)
    order = await asyncio.to_thread(runtime.engine.embed, _of_client(texts.job, request))  # it looks at every token
    vectors = await reply_of(request, order)
    # Thousands of numbers as text take a while, in which the loop has other clients.
    raw = await asyncio.to_thread(lambda: encode(texts.answer(vectors)))
    return Response(raw, media_type=JsonResponse.media_type)


def _of_client(job: EmbedJob, request: Request) -> EmbedJob:
    """The job with whose turn it takes, and within the server's time limit."""
    return replace(job, tenant=tenant_of(request), timeout_ms=within_limit(job.timeout_ms, request))
