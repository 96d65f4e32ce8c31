"""What every tier of several nodes must do when its server or the network fails. The test module of such a tier
inherits `SharedTierFaults` and gives the fixtures `tiers`, which opens tiers, and `server`."""

from collections.abc import Iterable
from time import monotonic
from typing import Any

import pytest

from dataplane.protocol.stored_blocks import Loaded, Outcome
from dataplane.tiers.tier import BlockLoad, Tier, TierError
from dataplane.tiers.values import value_size
from tests.tiers.blocks import (
    CLUSTER,
    OTHER_CLUSTER,
    assert_holds,
    assert_lacks,
    block,
    listed,
    name,
    soon,
    store,
    written_by,
)
from tests.tiers.redis_server import wait_until
from tests.tiers.tcp_proxy import tcp_proxy

SHORT_S = 0.5
MIB = 1 << 20


def failure_of(tier: Tier, secrets: Iterable[str]) -> str:
    """Return the message with which every call fails; health says that the tier is not usable, too."""
    with pytest.raises(TierError) as caught:
        store(tier, block(1, 100))
    message = str(caught.value)
    for call in (lambda: tier.lookup([name(1)], soon()), lambda: tier.delete([name(1)], soon())):
        with pytest.raises(TierError):
            call()
    health = tier.health(soon())
    assert not health.ok
    for text in (message, health.reason, repr(tier), repr(tier.usage()), repr(caught.value.__cause__)):
        assert not [secret for secret in secrets if secret in text]
    assert "\n" not in message + health.reason
    return message


class SharedTierFaults:
    """The tests."""

    def place(self, number: int) -> dict[str, Any]:
        """Return the parameters of a place of the server that no other test uses."""
        raise NotImplementedError

    def test_a_silent_server_is_late_and_its_connection_is_replaced(self, tiers: Any, server: Any) -> None:
        with tcp_proxy(server.port) as proxy:
            tier = tiers(proxy.address)
            cached = block(1, 100_000)
            store(tier, cached)
            proxy.silent = True
            memory = memoryview(bytearray(100_000))
            assert tier.load([BlockLoad(cached.block.name, memory)], monotonic() + SHORT_S) == [Loaded(Outcome.LATE)]
            assert tier.store([block(2, 100)], monotonic() + SHORT_S) == [Outcome.LATE]
            # Of another block, because the server may still carry it out.
            assert tier.delete([name(3)], monotonic() + SHORT_S) == [Outcome.LATE]
            assert tier.lookup([name(1)], monotonic() + SHORT_S) == [None]
            health = tier.health(monotonic() + SHORT_S)
            assert not health.ok
            assert "by the deadline" in health.reason
            proxy.silent = False
            proxy.drop()
            wait_until(lambda: tier.health(soon()).ok, "the tier reconnects")
            assert_holds(tier, [cached])
            assert tier.usage().blocks == 1

    def test_a_slow_server_is_late(self, tiers: Any, server: Any) -> None:
        with tcp_proxy(server.port) as proxy:
            tier = tiers(proxy.address)
            cached = block(1, MIB)
            store(tier, cached)
            proxy.slow = True
            memory = memoryview(bytearray(MIB))
            assert tier.load([BlockLoad(cached.block.name, memory)], monotonic() + SHORT_S) == [Loaded(Outcome.LATE)]
            proxy.slow = False
            assert_holds(tier, [cached])

    def test_nodes_share_blocks_and_count_only_their_own(self, tiers: Any, server: Any) -> None:
        one, other, foreign = (
            tiers(server.address, identity=identity, **self.place(1)) for identity in (CLUSTER, CLUSTER, OTHER_CLUSTER)
        )
        mine, theirs = block(1, 1000), block(2, 2000)
        store(one, mine)
        store(other, theirs)
        assert_holds(one, [mine, theirs])
        assert_holds(other, [mine, theirs])
        assert_lacks(foreign, [mine, theirs])
        assert one.usage().stored_bytes == value_size(1000)
        assert other.usage().stored_bytes == value_size(2000)
        assert listed(foreign) == []
        assert sorted(each.name for each in listed(one)) == [mine.block.name, theirs.block.name]

    def test_a_listing_counts_earlier_writes_of_this_node(self, tiers: Any, server: Any) -> None:
        stored = [written_by(block(300, 1000), "node-1"), written_by(block(301, 1000), "node-2")]
        store(tiers(server.address, **self.place(2)), *stored)
        after = tiers(server.address, **self.place(2))
        assert after.usage().blocks == 0
        assert len(list(after.blocks(soon()))) == len(list(after.blocks(soon()))) == 2
        assert (after.usage().blocks, after.usage().stored_bytes) == (1, value_size(1000))
        after.delete([stored[0].block.name], soon())
        assert after.usage().blocks == 0
