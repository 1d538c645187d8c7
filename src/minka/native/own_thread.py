"""The thread that decodes for a tool, so that an interrupt need not wait for a decode that takes minutes.

Python delivers Ctrl-C to the main thread only while it runs Python, and a decode does not. So the main thread waits
while another one decodes: always the same, because compute threads belong to the thread that first needed them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self, TypeVar

from minka.native.library import log
from minka.native.raw import RawContext

T = TypeVar("T")


class OwnThread:
    """One thread for all contexts of a tool. Use it as a context manager."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "minka-decode")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def run(self, context: RawContext, work: Callable[[], T]) -> T:
        """Call `work`, which may use `context`, and return what it returns.

        KeyboardInterrupt stops the running decode, and is raised here once the context is at rest and usable again.
        """
        future = self._pool.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            log.disabled = True  # libllama calls a decode that was stopped an error, on several lines
            context.abort()
            wait([future])
            raise
        finally:
            context.resume()
            log.disabled = False
