"""The routes of files and batch jobs: `/v1/files`, `/v1/batches`. 501 without --data-dir. Each key has its own."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import aclosing
from functools import partial
from pathlib import Path

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from minka.batches.execute import endpoints
from minka.batches.store import Store
from minka.batches.worker import Worker
from minka.errors import MinkaError, NotSupportedError, RequestError, UnsupportedError
from minka.params import ServerParams
from minka.protocols.batches import (
    PURPOSES,
    batch_object,
    decode_batch,
    decode_page,
    decode_purpose,
    deleted_object,
    file_object,
    list_object,
)
from minka.protocols.body import decode_json
from minka.server.client import tenant_of
from minka.server.state import State
from minka.server.wire import JsonResponse, bounded, read_body

FILES_PAGE, BATCHES_PAGE = 10_000, 20
"""Entries of a list if a client does not say how many; OpenAI's numbers."""


def routes(prefix: str) -> list[BaseRoute]:
    """The routes."""
    return [
        Route(f"{prefix}/v1/files", upload, methods=["POST"]),
        Route(f"{prefix}/v1/files", list_files, methods=["GET"]),
        Route(f"{prefix}/v1/files/{{id}}", get_file, methods=["GET"]),
        Route(f"{prefix}/v1/files/{{id}}", delete_file, methods=["DELETE"]),
        Route(f"{prefix}/v1/files/{{id}}/content", content, methods=["GET"]),
        Route(f"{prefix}/v1/batches", create, methods=["POST"]),
        Route(f"{prefix}/v1/batches", list_batches, methods=["GET"]),
        Route(f"{prefix}/v1/batches/{{id}}", get_batch, methods=["GET"]),
        Route(f"{prefix}/v1/batches/{{id}}/cancel", cancel, methods=["POST"]),
    ]


def make_worker(params: ServerParams) -> Worker | None:
    """The worker of --data-dir, which does nothing yet. Raises UsageError for a directory that cannot be used."""
    return Worker(Store(Path(params.data_dir).expanduser())) if params.data_dir else None


def _worker(request: Request) -> Worker:
    state: State = request.app.state.minka
    worker: Worker | None = request.app.state.batches
    if worker is None:
        raise NotSupportedError("This server does not support files and batches. Start it with `--data-dir`")
    worker.start(state.loaded)
    return worker


def _named(request: Request) -> tuple[str, str]:
    """The id in the path, and who asks."""
    return request.path_params["id"], tenant_of(request)


# -- files -------------------------------------------------------------------------------------------------------------


async def upload(request: Request) -> Response:
    """Keep a file of requests."""
    worker = _worker(request)
    form = await _form(request)
    try:
        purpose, file = decode_purpose(form.get("purpose")), form.get("file")
        if not isinstance(file, UploadFile):
            raise RequestError('"file" must be a file', param="file")
        name = Path(file.filename or "").name or "upload.jsonl"
        write = partial(shutil.copyfileobj, file.file)
        facts = await asyncio.to_thread(worker.store.add_file, name, purpose, write, tenant=tenant_of(request))
    except OSError as error:
        raise MinkaError(f"the file cannot be kept: {error.strerror}") from error
    finally:
        await form.close()
    return JsonResponse(file_object(facts))


async def _form(request: Request) -> FormData:
    """The form of a request; its file is on disk if it is large. Raises RequestError, and TooLargeError."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise RequestError('send the file as multipart/form-data, with the fields "purpose" and "file"')
    async with aclosing(bounded(request)) as chunks:
        try:
            form = await MultiPartParser(request.headers, chunks, max_files=1, max_fields=8).parse()
        except (MultiPartException, KeyError) as error:
            raise RequestError(f"the form cannot be read: {error}") from None
    unknown = next((name for name in form if name not in ("purpose", "file")), None)
    if unknown is not None:
        await form.close()
        raise UnsupportedError(f"field {unknown[:80]!r} of a file is not supported", param=unknown[:80])
    return form


async def list_files(request: Request) -> Response:
    """A page of the files."""
    purpose, page = request.query_params.get("purpose"), decode_page(request.query_params, FILES_PAGE)
    if purpose not in (*PURPOSES, None):
        raise RequestError(f'"purpose" must be {" or ".join(PURPOSES)}', param="purpose")
    found, more = await asyncio.to_thread(_worker(request).store.files, page, purpose, tenant=tenant_of(request))
    return JsonResponse(list_object([file_object(facts) for facts in found], has_more=more))


async def get_file(request: Request) -> Response:
    """One file's facts."""
    return JsonResponse(file_object(await asyncio.to_thread(_worker(request).store.file, *_named(request))))


async def delete_file(request: Request) -> Response:
    """Delete a file that no batch needs."""
    id, tenant = _named(request)
    await asyncio.to_thread(_worker(request).store.delete_file, id, tenant)
    return JsonResponse(deleted_object(id))


async def content(request: Request) -> Response:
    """What is in a file."""
    path = await asyncio.to_thread(_worker(request).store.path, *_named(request))
    return FileResponse(path, media_type="application/octet-stream")


# -- batches -----------------------------------------------------------------------------------------------------------


async def create(request: Request) -> Response:
    """Begin a batch."""
    worker = _worker(request)
    wanted = decode_batch(decode_json(await read_body(request)), endpoints())
    facts = await asyncio.to_thread(worker.store.add_batch, wanted, tenant_of(request))
    worker.notice()
    return JsonResponse(batch_object(facts))


async def list_batches(request: Request) -> Response:
    """A page of the batches."""
    page = decode_page(request.query_params, BATCHES_PAGE)
    found, more = await asyncio.to_thread(_worker(request).store.batches, page, tenant=tenant_of(request))
    return JsonResponse(list_object([batch_object(facts) for facts in found], has_more=more))


async def get_batch(request: Request) -> Response:
    """A batch as it is now."""
    return JsonResponse(batch_object(await asyncio.to_thread(_worker(request).store.batch, *_named(request))))


async def cancel(request: Request) -> Response:
    """Cancel a batch."""
    worker = _worker(request)
    facts = await asyncio.to_thread(worker.cancel, *_named(request))
    worker.notice()
    return JsonResponse(batch_object(facts))
