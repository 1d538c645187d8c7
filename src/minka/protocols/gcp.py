"""Google's Vertex AI protocol: one route whose `instances` are requests of any other route, told by name.

It is there if the environment says so (AIP_MODE=PREDICTION), as in Google's containers:
https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minka.errors import RequestError, UsageError
from minka.params import json_type
from minka.protocols.body import JsonObject

MAX_INSTANCES = 128
FORMAT = "@requestFormat"
"""The member of an instance that names its route."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """Where Google asks: the port, the route of predictions, and one more for health unless it is empty."""

    port: int = 8080
    predict: str = "/predict"
    health: str = ""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Vertex | None:
        """What the environment says, None if the server does not run for Vertex. Raises UsageError for a bad value."""
        if env.get("AIP_MODE") != "PREDICTION":
            return None
        port = env.get("AIP_HTTP_PORT") or "8080"
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"AIP_HTTP_PORT must be a port, but is {port!r}")
        return cls(
            port=int(port),
            predict=_route("AIP_PREDICT_ROUTE", env.get("AIP_PREDICT_ROUTE") or "/predict"),
            health=_route("AIP_HEALTH_ROUTE", env.get("AIP_HEALTH_ROUTE") or ""),
        )


def _route(name: str, path: str) -> str:
    """The path with a slash in front; braces would be parameters."""
    if "{" in path:
        raise UsageError(f"{name} must be a path without braces, but is {path!r}")
    return path if not path or path.startswith("/") else f"/{path}"


@dataclass(frozen=True, slots=True)
class Instance:
    """A request for another route: its path and its body."""

    path: str
    body: JsonObject


def decode_instances(body: JsonObject, paths: Iterable[str]) -> list[Instance | RequestError]:
    """The requests of a prediction, in order; what is wrong with one of them is its answer.

    `paths` are those of all POST routes. An instance names one of them, or its alias, see `alias`.
    """
    instances = body.get("instances")
    if not isinstance(instances, list):
        raise RequestError(f'"instances" must be a list of requests, but is {json_type(instances)}', param="instances")
    if len(instances) > MAX_INSTANCES:
        raise RequestError(
            f'"instances" has {len(instances)} requests, at most {MAX_INSTANCES} are allowed', param="instances"
        )
    known: dict[str, str] = {}
    for path in paths:
        known.setdefault(alias(path), path)
        known[path] = path
    return [_instance(value, known, f"instances[{index}]") for index, value in enumerate(instances)]


def _instance(value: object, known: Mapping[str, str], path: str) -> Instance | RequestError:
    if not isinstance(value, dict):
        return RequestError(f'"{path}" must be an object, but is {json_type(value)}', param=path)
    name = value.get(FORMAT)
    if not isinstance(name, str):
        return RequestError(f'"{path}.{FORMAT}" must be a string that names a route', param=f"{path}.{FORMAT}")
    if name not in known:
        return RequestError(f'"{path}.{FORMAT}": there is no route {name[:100]!r}', param=f"{path}.{FORMAT}")
    rest = {key: member for key, member in value.items() if key not in (FORMAT, "stream")}
    return Instance(known[name], rest)


def alias(path: str) -> str:
    """A path as a name: `/v1/chat/completions` is `chatCompletions`, `/apply-template` is `applyTemplate`."""
    bare = path.removeprefix("/v1").lstrip("/").split("{")[0].rstrip("/")
    first, *words = bare.replace("-", "/").replace("_", "/").split("/")
    return first + "".join(word[:1].upper() + word[1:] for word in words)
