"""Serve a model over HTTP: OpenAI's API and llama-server's own, for many clients at once.

Flags, environment variables and routes are llama-server's, so that its command lines and clients run unchanged.
"""

from __future__ import annotations

import gc
import logging
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING

from minka.commands.arguments import add_parameters, foreign_env, resolve
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_server
from minka.commands.settings import GROUPS, settings
from minka.errors import UnavailableError
from minka.params import EmbeddingParams, LogParams, ServerParams

if TYPE_CHECKING:
    import socket
    from concurrent.futures import Future
    from threading import Event

    from minka.runtime import Runtime
    from minka.server.app import App

log = logging.getLogger("minka.serve")


def configure(parser: ArgumentParser) -> None:
    """All groups of parameters, and llama-server's other flags, which are refused by name."""
    add_parameters(parser, *GROUPS, EmbeddingParams, ServerParams, LogParams)
    add_llama_server(parser)


def run(args: Namespace) -> int:
    """Bind, then load the model while requests are answered 503, then serve until told to stop."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    from minka import logs
    from minka.protocols.gcp import Vertex
    from minka.runtime import load
    from minka.server.app import build_app
    from minka.server.listen import bind

    logs.configure(resolve(args, LogParams, os.environ))
    for line in foreign_env(os.environ):
        log.warning("%s", line)
    params = resolve(args, ServerParams, os.environ)
    if (vertex := Vertex.from_env(os.environ)) is not None:
        params = replace(params, port=vertex.port)
    wanted = settings(args, params)
    app = build_app(params, vertex)
    sockets = bind(params)
    stop = Event()

    def check(_share: float) -> None:
        if stop.is_set():
            raise UnavailableError("the server is stopping")

    loader = ThreadPoolExecutor(1, "minka-load")
    loading = loader.submit(load, wanted, check)
    loader.shutdown(wait=False)  # its thread ends with the load, and OpenMP's threads for it as well
    return _run(_serve(app, params, sockets, loading, stop))


def _run(main: Coroutine[None, None, int]) -> int:
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _serve(
    app: App, params: ServerParams, sockets: list[socket.socket], model: Future[Runtime], stop: Event
) -> int:
    import asyncio

    from minka.server.listen import Server, urls

    server = Server(app, params)
    serving = asyncio.create_task(server.serve(sockets=sockets))
    loading = asyncio.create_task(_started(app, model, urls(sockets, params)))
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()  # a model that cannot be loaded ends the command
        await serving
    finally:
        server.should_exit = True
        stop.set()
        await asyncio.wait((serving, loading))
        if (batches := app.state.batches) is not None:
            await batches.stop()
        if not loading.exception():
            loading.result().close()
    return 0


async def _started(app: App, model: Future[Runtime], urls: list[str]) -> Runtime:
    """Open the server's doors when the model is loaded."""
    import asyncio

    runtime = await asyncio.wrap_future(model)
    # What start-up made lives for ever; the collector need not walk over it while streams wait.
    gc.collect()
    gc.freeze()
    app.state.minka.runtime = runtime
    if (batches := app.state.batches) is not None:
        batches.start(runtime)
    served = runtime.served
    log.info("listening on %s", ", ".join(urls))
    log.info(
        "model %s (%s), context of up to %d tokens in each of %d slots",
        served.model.name,
        served.model.description,
        served.n_ctx,
        served.n_slots,
    )
    return runtime


COMMAND = Command("serve", configure, run)
