"""A node that is drained takes nothing new in, and serves what it has."""

from __future__ import annotations

import pytest

from dataplane.client import AttachRefused, ClientEvent, attach
from dataplane.protocol.codes import Code
from dataplane.protocol.control.nodes import Drain, NodeDrained
from tests.dataplane import factories as make
from tests.dataplane.plane import WAIT_S, Plane, wait_for

PAGE = 4096


def drain(plane: Plane, *, on: bool) -> None:
    with plane.manager() as manager:
        assert manager.ask(Drain("n", on)) == NodeDrained("n", on)


def test_reads_and_open_reservations_continue_and_stores_are_refused(plane: Plane) -> None:
    with attach(plane.socket, [make.space()], timeout_s=30) as client:
        with client.reserve(make.keys(2), PAGE, tenant="a") as reservation:
            drain(plane, on=True)
            reservation.commit()
        assert client.lookup(make.keys(4)) == 2
        more = client.reserve(make.keys(4), PAGE, tenant="a")
        assert more.refused == {Code.DRAINING: 2}
        lease = client.acquire(make.keys(4))
        assert len(lease) == 2
        lease.release()
        stats = plane.describe()
        assert stats.draining
        assert stats.refused == {"draining": 2}
        drain(plane, on=False)
        assert client.reserve(make.keys(4), PAGE, tenant="a").refused == {}
        assert not plane.describe().draining


def test_a_draining_node_refuses_new_engines(plane: Plane) -> None:
    drain(plane, on=True)
    with pytest.raises(AttachRefused) as caught:
        attach(plane.socket, [make.space()], timeout_s=30)
    assert caught.value.code is Code.DRAINING
    drain(plane, on=False)
    with attach(plane.socket, [make.space()], timeout_s=30) as client:
        assert client.lookup(make.keys(1)) == 0


def test_an_engine_that_keeps_trying_attaches_when_the_drain_ends(plane: Plane) -> None:
    events: list[ClientEvent] = []
    drain(plane, on=True)
    space = make.space()
    with attach(plane.socket, [space], timeout_s=30, keep_trying=True, on_event=events.append) as client:
        assert (client.connected, client.lookup(make.keys(1))) == (False, 0)
        assert [(event.name, event.fields["code"]) for event in events] == [("refused", Code.DRAINING)]
        drain(plane, on=False)
        wait_for(lambda: client.lookup(make.keys(1)) or client.connected, "it attaches", WAIT_S)
        assert client.reserve(make.keys(1), PAGE, tenant="a").refused == {}
    assert [event.name for event in events][:2] == ["refused", "attached"]


def test_a_drained_node_is_drained_after_a_restart(plane: Plane) -> None:
    drain(plane, on=True)
    plane.kill()
    plane.start()
    assert plane.describe().draining
    drain(plane, on=False)
    drain(plane, on=False)
    plane.stop()
    plane.start()
    assert not plane.describe().draining
    with attach(plane.socket, [make.space()], timeout_s=30) as client:
        wait_for(lambda: client.reserve(make.keys(1), PAGE, tenant="a").refused == {}, "it stores", WAIT_S)
