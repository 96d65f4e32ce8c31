"""What a benchmark gets: how long it may take, a fresh data plane, a client of it, keys, and the baselines."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from weakref import WeakKeyDictionary

import msgspec

from benchmarks.harness.memory import Memcpy, MiB
from benchmarks.harness.roundtrip import RoundTrip
from dataplane.client import Client, attach
from dataplane.client.integrity import Verify
from dataplane.protocol.layout import U64, pack_keys
from dataplane.protocol.spaces import Space
from dataplane.replay.plane import Plane, own

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

    def __init__(self, effort: Effort, *, emulated: bool = False) -> None:
        self.effort = effort
        self.emulated = emulated
        """Devices are measured on the emulated device."""
        self.device = ""
        """The device that was measured."""
        self.memcpy_gbps: list[float] = []
        """What copies between shared mappings reached, measured along the way."""
        self._chains = 0
        self._plane_of: WeakKeyDictionary[Client, Plane] = WeakKeyDictionary()

    @contextmanager
    def client(self, block_bytes: int, pool_bytes: int | None = None) -> Iterator[Client]:
        """A client of an empty data plane of its own, without checksums; its pool has the effort's size unless one is
        given."""
        with (
            own(pool_bytes or self.effort.pool_bytes) as plane,
            attached(plane.engine_socket, block_bytes, checksums=False, verify="off") as client,
        ):
            self._plane_of[client] = plane
            yield client

    @contextmanager
    def another(
        self, client: Client, block_bytes: int, *, checksums: bool = False, verify: Verify = "off", spin_s: float = 0.0
    ) -> Iterator[Client]:
        """One more client of the same data plane, with integrity and waiting as asked."""
        with attached(self.socket_of(client), block_bytes, checksums=checksums, verify=verify, spin_s=spin_s) as second:
            yield second

    def socket_of(self, client: Client) -> str:
        """The engine socket of the client's data plane."""
        return self._plane_of[client].engine_socket

    def pid_of(self, client: Client) -> int:
        """The process of the client's data plane."""
        pid = self._plane_of[client].pid
        assert pid is not None, "a data plane of its own"
        return pid

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
        """Keys that are new, packed."""
        self._chains += 1
        seed = sha256(b"bench" + self._chains.to_bytes(8, "little")).digest()
        return pack_keys([sha256(seed + number.to_bytes(8, "little")).digest() for number in range(count)])


@contextmanager
def attached(
    socket: str, block_bytes: int, *, checksums: bool, verify: Verify, spin_s: float = 0.0
) -> Iterator[Client]:
    """A client of a data plane. RuntimeError when there is none."""
    client = attach(
        socket,
        [Space(model="bench", block_bytes=block_bytes)],
        group="bench",
        engine="larder bench",
        timeout_s=TIMEOUT_S,
        spin_s=spin_s,
        checksums=checksums,
        verify=verify,
    )
    try:
        if not client.connected:
            raise RuntimeError(f"no data plane took the benchmark at {socket}")
        yield client
    finally:
        client.close()


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
