"""More tenants than the journal of older releases had room for: a kill loses none of their blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dataplane.protocol.codec import encode
from dataplane.protocol.control.lookups import ListBlocks
from dataplane.protocol.engine import BlocksCommitted, Commit, Reserve, Reserved
from tests.dataplane import factories as make
from tests.dataplane.plane import RawEngine
from tests.dataplane.recovery.support import blocks
from tests.dataplane.recovery.support.blocks import attached_again, connect, kill
from tests.dataplane.recovery.support.relay import Relay
from tests.sizes import FULL, size

TENANTS = size(72_000, 9_000)
PAGE = 4096
LONG = "\U00020000" * 122
AT_ONCE = 64


def salt(number: int) -> str:
    """128 characters, 494 bytes."""
    return f"{LONG}{number:06d}"


def store(engine: RawEngine, numbers: range) -> int:
    """Store one block for each tenant, many requests ahead of their answers; published blocks."""
    assert engine.attached is not None
    (space,) = engine.attached.spaces
    stored = 0
    for first in range(numbers.start, numbers.stop, AT_ONCE):
        batch = range(first, min(first + AT_ONCE, numbers.stop))
        for number in batch:
            engine.send(encode(Reserve(number, space, salt(number), make.key(number), PAGE)))
        granted = [engine.receive() for _ in batch]
        for answer in granted:
            assert isinstance(answer, Reserved), answer
            assert answer.reservation, f"outcomes {answer.outcomes.hex()}"
            engine.send(encode(Commit(answer.id, answer.reservation, b"")))
        for _ in batch:
            committed = engine.receive()
            assert isinstance(committed, BlocksCommitted), committed
            stored += committed.blocks
    return stored


@pytest.mark.full
@pytest.mark.timeout(900)
def test_seventy_two_thousand_tenants_with_the_longest_salts_live_through_a_kill(
    make_plane: Callable[..., Relay],
) -> None:
    plane = make_plane(
        pool_bytes="320MiB",
        dataplane__max_blocks=str(size(80_000, 10_000)),
        dataplane__tick_s="2",  # periodic work takes long with this many tenants
        dataplane__stats_interval_s="30",
    ).start()
    with RawEngine(plane.socket) as engine:
        engine.attach()
        assert store(engine, range(TENANTS)) == TENANTS
        before = plane.describe()
        assert (before.pool.blocks, before.refused) == (TENANTS, {})
        assert (0.5 if FULL else 0) < before.id_journal_bytes / before.id_journal_capacity_bytes < 1
        plane.kill()
    plane.start()
    after = plane.describe()
    assert (after.adopted_blocks, after.pool.blocks) == (TENANTS, TENANTS)
    assert after.id_journal_bytes == before.id_journal_bytes
    with connect(plane) as client:
        for number in range(0, TENANTS, 1000):
            with client.acquire([make.key(number)], tenant=salt(number)) as lease:
                assert len(lease) == 1
    with plane.manager() as manager:
        listed = manager.ask(ListBlocks("n", tenant=salt(TENANTS - 1), after=TENANTS - 100))
    assert [block.key for block in listed.blocks] == [make.key(TENANTS - 1).hex()]
    with RawEngine(plane.socket) as engine:
        engine.attach()
        assert store(engine, range(TENANTS, TENANTS + 10)) == 10


def test_a_smaller_journal_of_an_older_release_is_adopted(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(pool_bytes="128MiB", dataplane__max_blocks="32768")
    plane.fault = "small_journal"
    plane.start()
    with connect(plane) as client:
        assert blocks.store(client, make.keys(4), tenant="acme") == 4
        old = len(plane.words("names")) * 8
        kill(plane, client)
        assert client.lookup(make.keys(4)) == 4
        plane.fault = ""
        plane.start()
        attached_again(client)
        stats = plane.describe()
        assert (stats.adopted_blocks, [tenant.tenant for tenant in stats.tenants]) == (4, ["acme"])
        (line,) = plane.wait_logged("names.migrated")
        new = len(plane.words("names")) * 8
        assert (line["from_bytes"], line["to_bytes"]) == (old, new)
        assert new > old
        assert blocks.store(client, make.keys(4, "more"), tenant="other") == 4
    plane.kill()
    plane.start()
    stats = plane.describe()
    assert (stats.adopted_blocks, sorted(each.tenant for each in stats.tenants)) == (8, ["acme", "other"])
