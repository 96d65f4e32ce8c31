"""The tier for object stores does what every tier does, over HTTP, with one range per block and with several, and with
blocks that are encoded."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import obstore
import pytest

from dataplane.protocol.stored_blocks import BlockForm, BlockName, Outcome, StoredBlock
from dataplane.tiers.codecs.codec import NotEncoded
from dataplane.tiers.codecs.decoding import CODECS
from dataplane.tiers.registry import TierContext, open_tier
from dataplane.tiers.tier import BlockStore, Tier, TierError
from dataplane.tiers.values import value_name, value_prefix
from tests.tiers.blocks import CLUSTER, assert_holds, block, soon, store
from tests.tiers.conformance import Backend, TierConformance
from tests.tiers.s3_server import BUCKET, S3Server, s3_server

pytestmark = pytest.mark.usefixtures("forked_workers")

MIB = 1 << 20
_prefixes = itertools.count()


class S3Backend:
    """Opens tiers on a server that is running, below a prefix of the bucket."""

    budget_bytes = 16 * MIB
    finds_earlier = True

    def __init__(self, server: S3Server, prefix: str, **parameters: Any) -> None:
        self._server = server
        self._prefix = prefix
        self._parameters = parameters

    def open(self, cluster: bytes = CLUSTER) -> Tier:
        parameters = {
            "url": f"s3://{BUCKET}/{self._prefix}",
            "endpoint": self._server.endpoint,
            "region": "us-east-1",
            "connect_timeout_s": 30.0,
            "credentials": {"access_key_id": "env:S3_KEY_ID", "secret_access_key": "env:S3_SECRET"},
            **self._parameters,
        }
        return open_tier("s3", parameters, TierContext(cluster, "node-1", self.budget_bytes))

    def stored(self, tier: Tier, of: BlockName) -> bytes:
        return bytes(obstore.get(self._server.store(self._prefix), value_name(CLUSTER, of)).bytes())

    def overwrite(self, tier: Tier, of: BlockName, data: bytes) -> None:
        obstore.put(self._server.store(self._prefix), value_name(CLUSTER, of), data)

    def plant(self, of: BlockName) -> int:
        """The library of the tier refuses the first of these paths, also to list them."""
        space, key = of.space.hex(), of.key.hex()
        self.put("/y", "./y", "../y")
        found = (f"{space}/{key}", f"{space}/{key}/y", f"{space}/{key[:-1]}f", f"{space}/y", "other", "zä", "b/c")
        self.put(*found)
        return len(found)

    def put(self, *names: str) -> None:
        """Put objects below the prefix of the cluster."""
        for name in names:
            self._server.put(f"{self._prefix}/{value_prefix(CLUSTER)}{name}", b"text")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(params=["default", pytest.param("small ranges", marks=pytest.mark.full)])
def plain(request: pytest.FixtureRequest, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Backend:
    monkeypatch.setenv("S3_KEY_ID", "AKIATEST")
    monkeypatch.setenv("S3_SECRET", "a-secret")
    more = {"range_bytes": 20_000} if request.param == "small ranges" else {}
    prefix = f"{request.param}-{next(_prefixes)}".replace(" ", "-")
    return S3Backend(server, prefix, **more)


class TestS3(TierConformance):
    @pytest.fixture
    def backend(self, plain: S3Backend) -> Backend:
        return plain


@pytest.mark.parametrize("refused", ["//y", "/../y", "/0abc//y", "/\x7f", ""])
def test_a_path_that_cannot_be_listed_hides_the_others_of_its_page_alone(plain: S3Backend, refused: str) -> None:
    tier = plain.open()
    try:
        stored = block(1, 5000)
        store(tier, stored)
        name = f"{stored.block.name.space.hex()}{refused}" if refused else "\x7f"
        plain.put(name)
        assert tier.health(soon()).ok
        with pytest.raises(TierError, match="delete that object"):
            list(tier.blocks(soon()))
        assert (tier.usage().foreign_objects, tier.usage().first_foreign) == (1, name)
        assert_holds(tier, [stored])
    finally:
        tier.close()


class ZstdTier:
    """A tier whose blocks are stored as the mover stores them under `compress: zstd`."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier

    def store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        return self._tier.store([_compressed(store) for store in stores], deadline)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)


def _compressed(store: BlockStore) -> BlockStore:
    try:
        encoding, data = CODECS["zstd"].encode(store.data, BlockForm("bfloat16"))
    except NotEncoded:
        return store
    if memoryview(store.data).nbytes != store.block.length:
        return store
    return BlockStore(store.block, data, encoding)


@pytest.mark.full
class TestS3WithZstd(TierConformance):
    """Its blocks come back although each range request asks for as many bytes as they have in memory."""

    @pytest.fixture
    def backend(self, plain: S3Backend) -> Backend:
        opened = plain.open
        plain.open = lambda cluster=CLUSTER: ZstdTier(opened(cluster))  # type: ignore[method-assign]
        return plain

    def bytes_stored(self, tier: Tier, backend: Backend, stored_blocks: Sequence[StoredBlock]) -> int:
        return sum(len(backend.stored(tier, each.name)) for each in stored_blocks)

    def test_a_block_takes_less_than_its_length(self, tier: Tier) -> None:
        stored = block(1, 1 << 20)
        assert store(tier, stored) == [Outcome.OK]
        assert tier.usage().stored_bytes < 0.8 * tier.stored_size(1 << 20)
        assert_holds(tier, [stored])
