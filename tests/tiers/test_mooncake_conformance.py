"""The tier for Mooncake Store does what every tier must do. It runs after `make peers`."""

from collections.abc import Iterator

import pytest

from tests.tiers.mooncake_server import MooncakeServer, mooncake_server

pytest.importorskip(
    "mooncake.store",
    reason="needs Mooncake: make peers ARGS=mooncake; on Debian, apt install libibverbs1 libcurl4 libnuma1",
    exc_type=ImportError,
)

from dataplane.protocol.stored_blocks import BlockName, Outcome
from dataplane.tiers.mooncake import TYPE
from dataplane.tiers.mooncake.parameters import MooncakeParameters
from dataplane.tiers.registry import TierContext
from dataplane.tiers.tier import Tier, TierError
from dataplane.tiers.values import value_name
from tests.tiers.blocks import CLUSTER, assert_holds, block, store
from tests.tiers.conformance import Backend, TierConformance

pytestmark = pytest.mark.peer


class MooncakeBackend:
    """Tiers of one master."""

    budget_bytes = 64 << 20
    finds_earlier = False

    def __init__(self, server: MooncakeServer) -> None:
        self._server = server

    def open(self, cluster: bytes = CLUSTER) -> Tier:
        return TYPE.open(
            MooncakeParameters(master=self._server.address), TierContext(cluster, "node-1", self.budget_bytes)
        )

    def stored(self, tier: Tier, of: BlockName) -> bytes:
        return bytes(self._server.client.get(value_name(CLUSTER, of)))

    def overwrite(self, tier: Tier, of: BlockName, data: bytes) -> None:
        key = value_name(CLUSTER, of)
        self._server.client.remove(key, True)
        self._server.client.put(key, data)

    def plant(self, of: BlockName) -> int:
        for key in (value_name(CLUSTER, of), value_name(CLUSTER, of)[:-1], "of another program"):
            self._server.client.put(key, b"text")
        return 0  # the store cannot be listed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeServer]:
    with mooncake_server(tmp_path_factory.mktemp("mooncake")) as running:
        yield running


class TestMooncake(TierConformance):
    @pytest.fixture
    def backend(self, server: MooncakeServer) -> Iterator[Backend]:
        yield MooncakeBackend(server)
        server.client.remove_all(True)


def test_a_master_that_is_gone_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    with mooncake_server(tmp_path_factory.mktemp("mooncake")) as server:
        tier = MooncakeBackend(server).open()
        stored = block(1, 1000)
        assert store(tier, stored) == [Outcome.OK]
        assert_holds(tier, [stored])
        server.process.kill()
        server.process.wait(60)
        with pytest.raises(TierError, match=r"Mooncake master .*: no answer"):
            store(tier, stored)
        tier.close()
