"""Answers to what other threads ask of the engine: a result, an error, or nothing if nobody waits any more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from minka.errors import MinkaError, NativeError

T = TypeVar("T")


class Reply(Protocol):
    """A future of any result."""

    def set_running_or_notify_cancel(self) -> bool:
        """False if nobody waits for it any more."""

    def set_exception(self, exception: BaseException | None) -> None:
        """End it with an error."""


def answer(reply: Future[T], work: Callable[[], T]) -> None:
    """Do the work and answer. What is no error of ours is raised as well: it may have left something half done."""
    if not reply.set_running_or_notify_cancel():
        return
    try:
        reply.set_result(work())
    except MinkaError as error:
        reply.set_exception(error)
    except MemoryError:
        reply.set_exception(NativeError("there is not enough memory for the state of the slot"))
    except Exception as error:
        reply.set_exception(bug(error))
        raise


def refuse(reply: Reply, error: MinkaError) -> None:
    """Answer with an error."""
    if reply.set_running_or_notify_cancel():
        reply.set_exception(error)


def bug(error: Exception) -> NativeError:
    """What clients are told of an error that nobody expected; the log has more."""
    return NativeError(f"internal error of the engine: {str(error) or type(error).__name__}")
