"""The tier for Redis does what every tier does: on one server, on a cluster, with TLS, and with blocks that expire."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from dataplane.protocol.stored_blocks import BlockName
from dataplane.tiers.registry import TierContext, open_tier
from dataplane.tiers.tier import Tier
from dataplane.tiers.values import value_name, value_prefix
from tests.tiers.blocks import CLUSTER
from tests.tiers.conformance import Backend, TierConformance
from tests.tiers.redis_server import RedisServer, redis_cluster, redis_server

MIB = 1 << 20


class RedisBackend:
    """Opens tiers on servers that are running."""

    budget_bytes = 16 * MIB
    finds_earlier = True

    def __init__(self, client: Any, **parameters: Any) -> None:
        self._client = client
        self._parameters = parameters

    def open(self, cluster: bytes = CLUSTER) -> Tier:
        parameters = {"connect_timeout_s": 30.0, **self._parameters}
        return open_tier("redis", parameters, TierContext(cluster, "node-1", self.budget_bytes))

    def stored(self, tier: Tier, of: BlockName) -> bytes:
        value: bytes = self._client.get(value_name(CLUSTER, of))
        return value

    def overwrite(self, tier: Tier, of: BlockName, data: bytes) -> None:
        self._client.set(value_name(CLUSTER, of), data)

    def plant(self, of: BlockName) -> int:
        prefix, client = value_prefix(CLUSTER), self._client
        client.rpush(value_name(CLUSTER, of), b"a list")
        client.hset(value_name(CLUSTER, of)[:-1] + "d", "field", b"a hash")
        client.set(value_name(CLUSTER, of)[:-1] + "e", b"text")
        client.set(value_name(CLUSTER, of)[:-1] + "f", b"short")
        names = [b"", b"/", b"/y", b"\xff\x00", of.space.hex().encode(), of.space.hex().encode() + b"//y"]
        for name in names:
            client.set(prefix.encode() + name, b"text")
        client.xadd(prefix + "stream", {"a": "b"})
        client.set("of another program", b"text")
        return 4 + len(names) + 1


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def tls_server() -> Iterator[RedisServer]:
    with redis_server(tls=True) as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as running:
        yield running


class TestOneServer(TierConformance):
    @pytest.fixture(params=["default", "expiring", "one connection"])
    def backend(self, request: pytest.FixtureRequest, server: RedisServer) -> Iterator[Backend]:
        more: dict[str, Any] = {
            "default": {"database": 3},
            "expiring": {"ttl_s": 3600, "database": 3},
            "one connection": {"connections": 1, "max_in_flight_bytes": 1, "database": 3},
        }[request.param]
        with redis.Redis(port=server.port, db=3) as client:
            client.flushdb()
            yield RedisBackend(client, servers=[server.address], **more)


class TestTls(TierConformance):
    @pytest.fixture
    def backend(self, tls_server: RedisServer) -> Iterator[Backend]:
        with tls_server.client() as client:
            client.flushdb()
            yield RedisBackend(client, servers=[tls_server.address], tls=True, ca_file=str(tls_server.certificate))


class TestCluster(TierConformance):
    @pytest.fixture
    def backend(self, cluster: list[RedisServer]) -> Iterator[Backend]:
        client = redis.RedisCluster(host="127.0.0.1", port=cluster[0].port)
        try:
            client.flushall()
            yield RedisBackend(client, servers=[cluster[0].address, cluster[1].address], cluster=True)
        finally:
            client.close()
