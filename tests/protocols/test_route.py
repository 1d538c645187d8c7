from __future__ import annotations

import pkgutil
import sys
from pathlib import Path

import pytest

import minka.protocols
from minka.protocols.openapi import openapi_object
from minka.protocols.route import Completion, Embedding, Prefill, discover
from tests.protocols.values import made_served, served_for

SERVED = made_served()


def test_the_apis_are_found() -> None:
    paths = {path for route in discover() for path in route.paths}
    assert {"/v1/chat/completions", "/chat/completions", "/v1/completions", "/completion", "/completions"} <= paths
    assert {"/tokenize", "/detokenize", "/apply-template", "/v1/chat/completions/input_tokens"} <= paths


def test_two_protocols_cannot_serve_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zz_second.py").write_text("from minka.protocols.native import ROUTES\n__all__ = ['ROUTES']\n")
    monkeypatch.setattr(minka.protocols, "__path__", [*minka.protocols.__path__, str(tmp_path)])
    assert "zz_second" in {info.name for info in pkgutil.iter_modules(minka.protocols.__path__)}
    try:
        with pytest.raises(ValueError, match=r"two protocols serve .*'/completion'"):
            discover()
    finally:
        sys.modules.pop("minka.protocols.zz_second", None)


@pytest.mark.parametrize("route", discover(), ids=lambda route: str(route.paths[0]))
def test_a_routes_example_is_a_good_request(route: object) -> None:
    if isinstance(route, Completion | Prefill):
        assert route.decode(route.example, SERVED).jobs
    elif isinstance(route, Embedding):
        assert route.decode(route.example, served_for(route.paths[0])).job.inputs
    else:
        assert route.answer(route.example, SERVED)  # type: ignore[attr-defined]


def test_every_route_is_described() -> None:
    described = openapi_object()["paths"]
    assert isinstance(described, dict)
    assert {path for route in discover() for path in route.paths} <= described.keys()
