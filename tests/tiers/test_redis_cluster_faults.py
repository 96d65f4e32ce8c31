"""A server of a Redis Cluster that is gone takes its own blocks out, and not the tier."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.redis.tier import RedisTier
from dataplane.tiers.registry import TierContext, open_tier
from dataplane.tiers.tier import BlockStore, TierError
from dataplane.tiers.values import value_name
from tests.tiers.blocks import CLUSTER, assert_holds, block, load, soon, store
from tests.tiers.redis_server import SLOTS, RedisServer, redis_cluster

GONE = 1


@pytest.fixture
def servers() -> Iterator[list[RedisServer]]:
    with redis_cluster() as running:
        yield running


@pytest.fixture
def tier(servers: list[RedisServer]) -> Iterator[RedisTier]:
    parameters: dict[str, Any] = {"servers": [server.address for server in servers], "cluster": True}
    opened = open_tier("redis", parameters | {"connect_timeout_s": 30.0}, TierContext(CLUSTER, "node-1", 0))
    assert isinstance(opened, RedisTier)
    yield opened
    opened.close()


def by_server(servers: list[RedisServer], stored: list[BlockStore]) -> list[list[BlockStore]]:
    """Divide blocks by the server that holds them."""
    divided: list[list[BlockStore]] = [[] for _ in servers]
    for entry in stored:
        slot = key_slot(value_name(CLUSTER, entry.block.name).encode())
        divided[min(slot * len(servers) // SLOTS, len(servers) - 1)].append(entry)
    return divided


def test_calls_for_blocks_of_a_server_that_is_gone_fail_alone(servers: list[RedisServer], tier: RedisTier) -> None:
    stored = [block(number, 1000) for number in range(60)]
    assert store(tier, *stored) == [Outcome.OK] * 60
    divided = by_server(servers, stored)
    assert all(divided)
    servers[GONE].kill()
    gone = divided[GONE]
    names = [entry.block.name for entry in gone]
    for _ in range(2):  # the second time, the server is in its backoff
        assert load(tier, gone[0])[0].outcome is Outcome.FAILED
        assert store(tier, *gone) == [Outcome.FAILED] * len(gone)
        assert tier.delete(names, soon()) == [Outcome.FAILED] * len(gone)
        assert tier.lookup(names, soon()) == [None] * len(gone)
    assert tier.health(soon()).ok
    assert_holds(tier, [*divided[0], *divided[2]])


def test_a_call_fails_as_a_whole_when_every_server_is_gone(servers: list[RedisServer], tier: RedisTier) -> None:
    stored = [block(number, 1000) for number in range(60)]
    store(tier, *stored)
    for server in servers:
        server.kill()
    for blocks in (stored, stored[:1]):
        with pytest.raises(TierError):
            tier.delete([entry.block.name for entry in blocks], soon())
