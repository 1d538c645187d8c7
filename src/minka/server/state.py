"""What all requests of a server share: its parameters, and its model once it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from minka.errors import UnavailableError
from minka.params import ServerParams
from minka.runtime import Runtime


@dataclass(slots=True)
class State:
    """`runtime` is set once, from the event loop's thread."""

    params: ServerParams
    runtime: Runtime | None = None

    @property
    def loaded(self) -> Runtime:
        """The model. Raises UnavailableError (503) while it loads."""
        if self.runtime is None:
            raise UnavailableError("Loading model")
        return self.runtime
