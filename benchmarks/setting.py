"""What a benchmark gets: how long it may take, a fresh data plane, a client of it, keys, and the baselines."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256

import msgspec

from benchmarks.memory import Memcpy, MiB
from benchmarks.roundtrip import RoundTrip
from dataplane.client import Client, attach
from dataplane.protocol.layout import U64, pack_keys
from dataplane.protocol.spaces import Space
from dataplane.replay.plane import own

TIMEOUT_S = 30.0


class Effort(msgspec.Struct, frozen=True):
    """How often things are done."""

    runs: int
    """Runs of a latency measurement; the median of their percentiles counts."""
    samples: int
    """Samples of a run."""
    rounds: int
    """Pairs of a throughput measurement."""
    pool_bytes: int


FULL = Effort(runs=5, samples=2_000, rounds=21, pool_bytes=512 * MiB)
QUICK = Effort(runs=1, samples=50, rounds=3, pool_bytes=128 * MiB)


class Setting:
    """Shared by the benchmarks of one run."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.memcpy_gbps: list[float] = []
        """What copies between shared mappings reached, measured along the way."""
        self._chains = 0

    @contextmanager
    def client(self, block_bytes: int, pool_bytes: int | None = None) -> Iterator[Client]:
        """A client of an empty data plane of its own; its pool has the effort's size unless one is given."""
        with own(pool_bytes or self.effort.pool_bytes) as plane:
            space = Space(model="bench", block_bytes=block_bytes)
            client = attach(
                plane.engine_socket, [space], group="bench", engine="larder bench", timeout_s=TIMEOUT_S
            )
            try:
                if not client.connected:
                    raise RuntimeError(f"no data plane took the benchmark at {plane.engine_socket}")
                yield client
            finally:
                client.close()

    @contextmanager
    def roundtrip(self) -> Iterator[RoundTrip]:
        """The baseline of latencies."""
        baseline = RoundTrip()
        try:
            yield baseline
        finally:
            baseline.close()

    @contextmanager
    def memcpy(self, batch_bytes: int) -> Iterator[Memcpy]:
        """The baseline of throughput, as large as the pool."""
        baseline = Memcpy(batch_bytes, self.effort.pool_bytes)
        try:
            yield baseline
        finally:
            baseline.close()

    def new_keys(self, count: int) -> U64:
        """Keys that nobody has seen, packed."""
        self._chains += 1
        seed = sha256(b"bench" + self._chains.to_bytes(8, "little")).digest()
        return pack_keys([sha256(seed + number.to_bytes(8, "little")).digest() for number in range(count)])


def store(client: Client, keys: U64, block_bytes: int) -> None:
    """Make blocks present without writing to them. RuntimeError when one is refused."""
    with client.reserve(keys, block_bytes) as reservation:
        written = reservation.commit().blocks
    if written != len(keys):
        raise RuntimeError(f"stored {written} of {len(keys)} blocks: {reservation.refused}")


def fill_pool(setting: Setting, client: Client, block_bytes: int, pool_bytes: int, piece: int) -> None:
    """Store until the pool is full and every byte of it was written through this client's mapping."""
    pattern = bytes(block_bytes)
    for _ in range(2 * -(-pool_bytes // (block_bytes * piece))):
        keys = setting.new_keys(piece)
        with ExitStack() as open_reservation:
            reservation = open_reservation.enter_context(client.reserve(keys, block_bytes))
            for position in reservation.writable:
                reservation.view(position)[:] = pattern
            reservation.commit()
