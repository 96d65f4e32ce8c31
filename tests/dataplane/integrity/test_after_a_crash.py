"""A data plane dies in the middle of things: what it leaves is held against its checksums before anybody gets it."""

from __future__ import annotations

from pathlib import Path

from dataplane.client import Client, attach
from dataplane.protocol.layout import H_ADOPTED_NS
from tests.dataplane import factories as make
from tests.dataplane.integrity.faulty_memory import flip
from tests.dataplane.plane import contents, wait_for
from tests.dataplane.recovery.support.harness import Supervised, supervised

PAGE = 4096


def adopted_at(client: Client) -> int:
    attachment = client._link.attachment
    return 0 if attachment is None else attachment.index.cells[H_ADOPTED_NS]


def crash(plane: Supervised, client: Client) -> None:
    """kill -9, and wait until the next data plane has taken the memory over."""
    before, epoch = adopted_at(client), client.epoch
    plane.kill_plane()
    wait_for(
        lambda: client.lookup([]) == 0 and client.epoch != epoch and adopted_at(client) > before,
        "the memory is adopted, and the client attaches again",
    )


def test_damaged_blocks_are_misses_after_a_crash_and_others_are_served(socket_dir: Path) -> None:
    chain = make.keys(6)
    with supervised(socket_dir) as plane, attach(plane.socket, [make.space()], timeout_s=30) as client:
        with client.reserve(chain, PAGE) as reservation:
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            assert reservation.commit().blocks == 6
        flip(plane, client, chain[4], at=100)
        crash(plane, client)
        with client.acquire(chain) as lease:
            assert len(lease) == 4
            assert [bytes(lease.view(at)) for at in range(4)] == contents(chain[:4], PAGE)
        stats = plane.wait_stats(lambda stats: stats.totals.corrupt_blocks == 1, "it was reported")
        assert stats.pool.blocks == 5
        assert client.lookup(chain) == 4
        with client.reserve(chain, PAGE) as reservation:
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            assert reservation.commit().blocks == 1
        crash(plane, client)
        with client.acquire(chain) as lease:
            assert [bytes(lease.view(at)) for at in range(6)] == contents(chain, PAGE)
        assert plane.describe().totals.corrupt_blocks == 0, "counted since its start"
