"""Joining over a network, and what does not let a management plane or a node begin."""

from __future__ import annotations

import socket

import pytest

from tests.fleet.fleet import Fleet

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("tcp://127.0.0.1:{taken}", "cannot be bound: Address already in use"),
        ("tcp://198.51.100.1:8471", "cannot be bound: Cannot assign requested address"),
        ("tcp://0.0.0.0:99999", "expected tcp://HOST:PORT"),
        ("ipc:///no/such/folder/join.sock", "cannot be bound: No such file or directory"),
    ],
)
def test_a_join_socket_that_cannot_be_bound_ends_the_start_before_anything_is_written(
    empty_fleet: Fleet, url: str, says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = url.format(taken=taken.getsockname()[1])
        app = empty_fleet.manager(LARDER_APP__JOIN_URL=wanted)
        app.launch()
        assert app.ended() == 1
    last = app.log().splitlines()[-1]
    assert last.startswith("Error: app.join_url: ")
    assert says in last
    assert "Traceback" not in app.log()
    assert not (app.folder / "larder.db").exists()
