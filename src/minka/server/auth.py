"""API keys: every path but the public ones needs one, if any is set. Keys are compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from minka.errors import AuthenticationError, UsageError
from minka.params import ServerParams
from minka.server.wire import error_response


def load_keys(params: ServerParams) -> tuple[bytes, ...]:
    """The keys of --api-key and --api-key-file (one a line; `#` starts a comment line)."""
    keys = list(params.api_key)
    if params.api_key_file is not None:
        try:
            lines = Path(params.api_key_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"cannot read --api-key-file {params.api_key_file}: {getattr(error, 'strerror', None) or error}"
            ) from None
        found = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
        if not found:
            raise UsageError(f"--api-key-file {params.api_key_file} has no key; the server would be open to everyone")
        keys += found
    return tuple(key.encode() for key in keys)


class KeyDoor:
    """401 without a valid key in `Authorization: Bearer KEY` or `X-Api-Key`."""

    def __init__(self, app: ASGIApp, keys: tuple[bytes, ...], public: Collection[str]) -> None:
        self._app, self._keys, self._public = app, keys, public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI side."""
        if scope["type"] == "http" and self._keys and scope["path"] not in self._public:
            key = self._key(Headers(scope=scope))
            if key is None:
                await error_response(AuthenticationError("Invalid API Key"), scope)(scope, receive, send)
                return
            scope.setdefault("state", {})["tenant"] = _tenant(key)
        await self._app(scope, receive, send)

    def _key(self, headers: Headers) -> bytes | None:
        """The key that was given, None if it is none of ours."""
        given = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
        # All keys are compared, so that the time does not tell which one was right.
        # Header values are bytes; Starlette reads them as Latin-1.
        equal = [hmac.compare_digest(given.encode("latin-1"), key) for key in self._keys]
        return self._keys[equal.index(True)] if any(equal) else None


def _tenant(key: bytes) -> str:
    """Who has a key, in words that tell nobody the key. A key's place among others is nobody's name: it changes, and
    what is kept for one client would be another's after a restart."""
    return f"key {blake2b(key, digest_size=16, person=b'minka tenant').hexdigest()}"
