"""Sockets: what is bound, what is said if it cannot be, and how the server stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from pathlib import Path

import httpx
import pytest

from minka.errors import UsageError
from minka.params import ServerParams
from minka.server.app import build_app
from minka.server.listen import Server, bind, urls
from tests.fakes import FakeBackend
from tests.server.site import Live, fake_runtime


def close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def test_port_zero_takes_a_free_port_and_tells_it() -> None:
    sockets = bind(ServerParams(port=0))
    try:
        (url,) = urls(sockets, ServerParams(port=0))
        assert url == f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        assert sockets[0].getsockname()[1] > 0
    finally:
        close(sockets)


def test_a_port_in_use_is_named_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            bind(ServerParams(port=port))
    assert caught.value.exit_code == 2
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1 port {port}: Address already in use; give another --port or --host"
    )


def test_half_a_certificate_and_one_that_is_none_are_refused_before_anything_is_bound(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--ssl-cert-file and --ssl-key-file belong together: give both"):
        bind(ServerParams(port=0, ssl_key_file="key.pem"))
    both = ServerParams(port=0, ssl_key_file=str(tmp_path / "key.pem"), ssl_cert_file=str(tmp_path / "cert.pem"))
    with pytest.raises(UsageError, match=r"cert\.pem with --ssl-key-file .*key\.pem: No such file or directory"):
        bind(both)
    for name in ("key.pem", "cert.pem"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(UsageError, match=r"cert\.pem with --ssl-key-file .*key\.pem: "):
        bind(both)


def test_a_host_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match="cannot listen on no host port 0: "):
        bind(ServerParams(host=("no host",), port=0))


def test_if_one_of_several_hosts_fails_none_stays_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UsageError, match=f"no host port {port}"):
        bind(ServerParams(host=("127.0.0.1", "no host"), port=port))
    close(bind(ServerParams(port=port)))


def test_a_port_that_was_just_left_can_be_taken_again() -> None:
    sockets = bind(ServerParams(port=0))
    port = sockets[0].getsockname()[1]
    sockets[0].listen()
    client = socket.create_connection(("127.0.0.1", port))
    served, _ = sockets[0].accept()
    served.close()  # the server's side closes first and keeps the port in TIME_WAIT
    client.close()
    close(sockets)
    close(bind(ServerParams(port=port)))


def test_two_servers_share_a_port_only_if_both_want_to() -> None:
    first = bind(ServerParams(port=0, reuse_port=True))
    port = first[0].getsockname()[1]
    try:
        close(bind(ServerParams(port=port, reuse_port=True)))
        with pytest.raises(UsageError):
            bind(ServerParams(port=port))
    finally:
        close(first)


def test_a_unix_socket_is_made_anew_and_served(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    params = ServerParams(host=(str(path),))
    with FakeBackend() as backend, Live(fake_runtime(backend), params) as live:
        assert live.url == f"unix:{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://minka/health").json() == {"status": "ok"}


def test_a_unix_socket_of_a_running_server_is_not_taken_away(tmp_path: Path) -> None:
    params = ServerParams(host=(str(tmp_path / "m.sock"),))
    first = bind(params)
    try:
        with pytest.raises(UsageError, match="cannot listen"):
            bind(params)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(params.host[0])
    finally:
        close(first)


def test_a_file_in_a_sockets_place_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    path.write_text("precious")
    with pytest.raises(UsageError, match="cannot listen on"):
        bind(ServerParams(host=(str(path),)))
    assert path.read_text() == "precious"
    assert stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 (of the name itself)


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_ipv6_address_has_brackets() -> None:
    try:
        sockets = bind(ServerParams(host=("::1",), port=0))
    except UsageError:
        pytest.skip("this machine has no IPv6 loopback")
    try:
        assert urls(sockets, ServerParams())[0] == f"http://[::1]:{sockets[0].getsockname()[1]}"
        assert urls(sockets, ServerParams(ssl_cert_file="c.pem"))[0].startswith("https://")
    finally:
        close(sockets)


def test_the_first_signal_drains_and_the_second_stops() -> None:
    server = Server(build_app(ServerParams()), ServerParams())
    server.handle_exit(signal.SIGTERM, None)
    assert (server.should_exit, server.force_exit) == (True, False)
    server.handle_exit(signal.SIGTERM, None)
    assert server.force_exit


def test_an_answer_does_not_say_which_software_gives_it() -> None:
    with FakeBackend() as backend, Live(fake_runtime(backend)) as live:
        response = httpx.get(f"{live.url}/health")
        assert "server" not in response.headers
        assert json.loads(response.text) == {"status": "ok"}
