"""Where the kernel has no `membarrier`, leases go by message: slower, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dataplane.client import Client, attach
from dataplane.protocol.spaces import Space
from tests.dataplane import factories as make
from tests.dataplane.hammer.content import MODEL
from tests.dataplane.hammer.test_hammer import hammer, seconds
from tests.dataplane.hostile.content import chain, fill, read, store
from tests.dataplane.hostile.misfits import attachment_of
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.recovery.support.blocks import connect


def counted(client: Client) -> int:
    """The sum of a client's lease counters."""
    return int(attachment_of(client).area.counters.sum())


@pytest.fixture
def slow_plane(make_plane: Callable[..., Plane]) -> Plane:
    return make_plane(dataplane__membarrier="false").start()


@pytest.mark.full
def test_the_hammer_finds_no_wrong_byte(socket_dir: Path) -> None:
    with hammer(socket_dir, dataplane__membarrier="false") as beaten:
        with attach(beaten.socket, [Space(model=MODEL)], timeout_s=30) as client:
            assert not attachment_of(client).membarrier
        beaten.run(seconds() / 2, lambda: beaten.has_met_readers(blocks=500))
        assert min(beaten.totals()[name] for name in ("blocks", "stored")) > 500
        assert beaten.wrong() == []
        stats = beaten.settle()
        assert (stats.pool.reserved_bytes, stats.pool.quarantined_bytes) == (0, 0)
        result = beaten.result()
        assert result["faults"] == []
        assert int(str(result["put_back"])) > 0, "eviction met readers"


def test_a_lease_holds_its_blocks_until_it_is_released(slow_plane: Plane) -> None:
    with connect(slow_plane) as client:
        assert store(client, 7) == 8
        lease = client.acquire(chain(7))
        assert (len(lease), counted(client)) == (8, 8)
        for number in range(48):
            with client.reserve([make.key(("fill", number))], make.MIB) as reservation:
                reservation.commit()
        assert read(client, 7) == (8, 0)
        lease.release()
        assert counted(client) == 0
        fill(client, "more", 48)
        assert client.lookup(chain(7)) == 0


def test_a_lease_with_a_late_answer_is_released_and_no_counter_is_lost(slow_plane: Plane) -> None:
    with attach(slow_plane.socket, [make.space()], timeout_s=2.0, on_event=lambda event: None) as client:
        assert store(client, 7) == 8
        lease = client.acquire(chain(7))
        with slow_plane.frozen():
            assert len(client.acquire(chain(7))) == 0, "no answer in time is a miss"
            lease.release()
            assert counted(client) == 8, "the data plane may be counting: wait for it"
            assert len(client.acquire(chain(7))) == 0
        wait_for(lambda: client.lookup(chain(7)) == 8 and counted(client) == 0, "the late answer is settled")
        assert read(client, 7) == (8, 0)
        assert counted(client) == 0


def test_counters_are_released_when_the_data_plane_dies_with_a_pending_request(slow_plane: Plane) -> None:
    with attach(slow_plane.socket, [make.space()], timeout_s=2.0, on_event=lambda event: None) as client:
        assert store(client, 7) == 8
        lease = client.acquire(chain(7))
        attachment = attachment_of(client)
        with slow_plane.frozen():
            assert len(client.acquire(chain(7))) == 0
            lease.release()
            slow_plane.kill()
        wait_for(lambda: client.lookup(chain(7)) >= 0 and not client.connected, "the end is noticed")
        assert int(attachment.area.counters.sum()) == 0
        assert attachment.idle
