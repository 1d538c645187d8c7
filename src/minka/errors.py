"""The one error tree. A class carries its HTTP status, its wire `type` and its exit code; nothing else maps errors.

MinkaError                       500 server_error            exit 1
├── RequestError                 400 invalid_request_error        2
│   ├── UnsupportedError         400 (names the field)            2
│   ├── ContextSizeError         400 exceed_context_size_error    2
│   ├── NotFoundError            404 not_found_error              2
│   ├── MethodError              405 invalid_request_error        2
│   └── TooLargeError            413 invalid_request_error        2
├── AuthenticationError          401 authentication_error         1
├── QueueFullError               429 rate_limit_error             1
├── NotSupportedError            501 not_supported_error          2
├── UnavailableError             503 unavailable_error            1
├── DeadlineError                504 timeout_error                1
├── UsageError                   a bad command line               2
├── ModelError                   a model file cannot be used      1
└── NativeError                  libllama failed or would abort   1
"""

from __future__ import annotations

from typing import ClassVar


class MinkaError(Exception):
    """Base of every error Minka raises on purpose. `str(error)` is one sentence for a person."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def extra(self) -> dict[str, int]:
        """Further keys of the wire error object, if the class has any."""
        return {}


class RequestError(MinkaError):
    """The request is wrong and would be wrong again; `param` names the field."""

    status = 400
    type = "invalid_request_error"
    exit_code = 2


class UnsupportedError(RequestError):
    """A field or value that OpenAI or llama-server define and Minka does not support yet."""


class ContextSizeError(RequestError):
    """The prompt alone does not fit the context of a slot."""

    type = "exceed_context_size_error"

    def __init__(self, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), "
            "try increasing it (--ctx-size) or shorten the prompt"
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx

    def extra(self) -> dict[str, int]:
        """The two numbers a client needs to shorten its prompt."""
        return {"n_prompt_tokens": self.n_prompt_tokens, "n_ctx": self.n_ctx}


class NotFoundError(RequestError):
    """No such path, model or object."""

    status = 404
    type = "not_found_error"


class MethodError(RequestError):
    """The path exists, the method does not."""

    status = 405


class TooLargeError(RequestError):
    """The body is over the limit."""

    status = 413


class AuthenticationError(MinkaError):
    """The API key is missing or wrong."""

    status = 401
    type = "authentication_error"


class QueueFullError(MinkaError):
    """The queue is at its bound; try again later."""

    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which a place is likely to be free."""


class NotSupportedError(MinkaError):
    """The server was started without this feature, or the model lacks it."""

    status = 501
    type = "not_supported_error"
    exit_code = 2


class UnavailableError(MinkaError):
    """Not now: the model is loading, the server is stopping, no slot is free."""

    status = 503
    type = "unavailable_error"


class DeadlineError(MinkaError):
    """The request's deadline passed before any compute."""

    status = 504
    type = "timeout_error"


class UsageError(MinkaError):
    """A command line that cannot be obeyed."""

    exit_code = 2


class ModelError(MinkaError):
    """A model file is missing, is no GGUF, is truncated, or does not fit."""


class NativeError(MinkaError):
    """libllama refused, or a call was stopped that would have aborted the process."""
