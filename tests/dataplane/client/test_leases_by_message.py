"""Where the kernel has no `membarrier`, leases go by message: slower, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dataplane.client import Client
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect, read, store
from tests.dataplane.load.content import fill
from tests.dataplane.load.misfits import attachment_of
from tests.dataplane.plane import Plane, wait_for

CHAIN = make.keys(8)


def counted(client: Client) -> int:
    """The sum of a client's lease counters."""
    return int(attachment_of(client).area.counters.sum())


@pytest.fixture
def slow_plane(make_plane: Callable[..., Plane]) -> Plane:
    return make_plane(dataplane__membarrier="false").start()


def test_a_lease_holds_its_blocks_until_it_is_released(slow_plane: Plane) -> None:
    with connect(slow_plane) as client:
        assert store(client, CHAIN) == 8
        lease = client.acquire(CHAIN)
        assert (len(lease), counted(client)) == (8, 8)
        for number in range(48):
            with client.reserve([make.key(("fill", number))], make.MIB) as reservation:
                reservation.commit()
        assert read(client, CHAIN) == 8
        lease.release()
        assert counted(client) == 0
        fill(client, "more", 48)
        assert client.lookup(CHAIN) == 0


def test_a_lease_with_a_late_answer_is_released_and_no_counter_is_lost(slow_plane: Plane) -> None:
    with connect(slow_plane, timeout_s=2.0) as client:
        assert store(client, CHAIN) == 8
        lease = client.acquire(CHAIN)
        with slow_plane.frozen():
            assert len(client.acquire(CHAIN)) == 0, "no answer in time is a miss"
            lease.release()
            assert counted(client) == 8, "the data plane may be counting: wait for it"
            assert len(client.acquire(CHAIN)) == 0
        wait_for(lambda: client.lookup(CHAIN) == 8 and counted(client) == 0, "the late answer is settled")
        assert read(client, CHAIN) == 8
        assert counted(client) == 0


def test_counters_are_released_when_the_data_plane_dies_with_a_pending_request(slow_plane: Plane) -> None:
    with connect(slow_plane, timeout_s=2.0) as client:
        assert store(client, CHAIN) == 8
        lease = client.acquire(CHAIN)
        attachment = attachment_of(client)
        with slow_plane.frozen():
            assert len(client.acquire(CHAIN)) == 0
            lease.release()
            slow_plane.kill()
        wait_for(lambda: client.lookup(CHAIN) >= 0 and not client.connected, "the end is noticed")
        assert int(attachment.area.counters.sum()) == 0
        assert attachment.idle
