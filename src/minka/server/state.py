"""What all requests of a server share: its parameters, and its model once it is loaded."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from minka.errors import UnavailableError
from minka.params import ServerParams
from minka.protocols.responses_store import ResponseStore
from minka.runtime import Runtime
from minka.server.streams import Streams
from minka.types import Counters


@dataclass(slots=True)
class State:
    """`runtime` is set once, from the event loop's thread. `started` is Unix time; `scraped` are the engine's counters
    as `/metrics` told them last."""

    params: ServerParams
    runtime: Runtime | None = None
    started: int = field(default_factory=lambda: int(time.time()))
    scraped: Counters = field(default_factory=Counters)
    streams: Streams = field(default_factory=Streams)
    responses: ResponseStore = field(default_factory=ResponseStore)

    @property
    def loaded(self) -> Runtime:
        """The model. Raises UnavailableError (503) while it loads."""
        if self.runtime is None:
            raise UnavailableError("Loading model")
        return self.runtime
