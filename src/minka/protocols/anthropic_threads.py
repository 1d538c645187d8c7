"""Anthropic's threads: the server holds a conversation, and a request brings only what is new in it.

`thread: {"type": "create"}` keeps the conversation under the answer's id, `{"type": "continue", "previous_message_id":
...}` goes on from there. Clients that lose a thread send everything again, so nothing depends on what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minka.errors import NotFoundError, RequestError, UnsupportedError
from minka.protocols.body import JsonObject
from minka.protocols.responses_store import Kept, Shelf

_FIXED = ("system", "tools")
"""What a thread is created with and keeps; a request that goes on from it must not repeat it."""


class ThreadLostError(NotFoundError):
    """The conversation is not kept any more; `code` tells a client to send all of it again."""

    code = "thread_not_found"


@dataclass(frozen=True, slots=True)
class Thread:
    """A conversation that is to be kept. `messages` are the request's own; `previous` is the answer before them."""

    shelf: Shelf
    messages: Sequence[JsonObject]
    fixed: JsonObject
    previous: str = ""

    def keep(self, id: str, content: Sequence[JsonObject]) -> None:
        """Keep it with an answer under the answer's id."""
        body = {"status": "completed", "content": list(content), "fixed": self.fixed}
        self.shelf.save(Kept(id, body, self.messages, self.previous))


def resumed(body: JsonObject, shelf: Shelf | None) -> tuple[JsonObject, Thread | None]:
    """The body with the whole conversation, and the thread if it is to be kept.

    Raises ThreadLostError for a thread that is not kept, RequestError for a `thread` that makes no sense.
    """
    wanted = body.get("thread")
    if wanted is None:
        return body, None
    if shelf is None:
        raise UnsupportedError("thread: this server keeps no conversations", param="thread")
    shelf = replace(shelf, tenant=f"threads of {shelf.tenant}")
    new = body.get("messages")
    messages = new if isinstance(new, list) else []
    match wanted:
        case {"type": "create"}:
            fixed = {name: body[name] for name in _FIXED if body.get(name) is not None}
            return body, Thread(shelf, messages, fixed)
        case {"type": "continue", "previous_message_id": str(previous)}:
            return _continued(body, Thread(shelf, messages, {}, previous))
        case _:
            raise RequestError(
                'thread: type must be "create", or "continue" with a previous_message_id', param="thread"
            )


def _continued(body: JsonObject, thread: Thread) -> tuple[JsonObject, Thread]:
    for name in _FIXED:
        if body.get(name) is not None:
            raise RequestError(f"{name}: a thread that goes on has it already", param=name)
    chain = thread.shelf.chain(thread.previous)
    if not chain:
        raise ThreadLostError(f"thread: there is no message {thread.previous[:80]!r}", param="thread")
    messages: list[object] = []
    for kept in chain:
        messages += kept.input
        messages.append({"role": "assistant", "content": kept.body["content"]})
    fixed = chain[0].body["fixed"]
    assert isinstance(fixed, dict), "written by keep"
    whole = {**body, **fixed, "messages": [*messages, *thread.messages]}
    return whole, replace(thread, fixed=fixed)
