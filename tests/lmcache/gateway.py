"""A gateway in the test's own process, over a core on bytearrays: it works when it is given a turn, and time is the
test's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

from dataplane.copies.copying import CopyThreads
from dataplane.copies.devices import Devices
from dataplane.copies.gpu_copies import GpuCopyService
from dataplane.core.inprocess import InProcess
from dataplane.devices.find import FindRuntime, find
from dataplane.gateways.lmcache.server import GatewayOptions, LMCacheServer
from dataplane.gateways.lmcache.workers.instances import Timeouts
from dataplane.gateways.lmcache.zmtp.sockets import AdoptedSocket
from dataplane.holding import CONNECTION
from dataplane.io.loop import Loop
from dataplane.memory.memory import NodeMemory
from dataplane.memory.named import NamedFile
from dataplane.observe.trace import RequestSpans
from dataplane.protocol.layout import H_MEMORY
from tests.dataplane.bench_node import Bench
from tests.dataplane.plane import WAIT_S
from tests.lmcache.client import Client

SHM_NAME = "lmcache_l1_pool_bench"


class PlainPool:
    """The named segment as a bytearray."""

    name = SHM_NAME
    identity = 1
    problem = ""
    restored = 0
    short = False

    def look(self) -> None:
        """Tests set `problem`."""

    def lacking(self, ranges: object) -> list[tuple[int, int]]:
        return []

    def take(self, ranges: object) -> None:
        raise AssertionError("it lacks nothing")

    def __init__(self, bench: Bench, nbytes: int) -> None:
        self._bench = bench
        self.bytes = bytearray(nbytes)

    @property
    def nbytes(self) -> int:
        return len(self.bytes)

    def base(self, segment: int) -> int:
        return self._bench.memory.bases[segment]

    def view(self) -> memoryview:
        return memoryview(self.bytes)


class Holder:
    """Records its calls, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.descriptors: dict[int, int] = {}
        """Descriptors of connections by their numbers."""

    def made(self, kind: str, number: int, file: AdoptedSocket) -> None:
        self.calls.append(f"{kind} made")
        if kind == CONNECTION:
            self.descriptors[number] = file.fd

    def dropped(self, kind: str, number: int) -> None:
        self.calls.append(f"{kind} dropped")
        del self.descriptors[number]


class Gateway:
    """One gateway and its core. `restart` is a new gateway over the same core and folder, as after a `kill -9`."""

    def __init__(
        self,
        folder: Path,
        capacity_bytes: int = 8 << 20,
        *,
        allow_clear: bool = True,
        find_devices: FindRuntime = find,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.bench = Bench(capacity_bytes, named_bytes=capacity_bytes, **options)
        self.bench.index.header[H_MEMORY] = 12_345
        self.pool = PlainPool(self.bench, capacity_bytes)
        self._allow_clear = allow_clear
        self._find_devices = find_devices
        self.holder = Holder()
        self._clients: list[Client] = []
        self.begin("tcp://127.0.0.1:0")

    def begin(self, url: str) -> None:
        """Another gateway at this URL; all engines of before have lost their peer."""
        for engine in self.bench.node.engines.values():
            engine.connected = False
        self.loop = Loop()
        self.devices = Devices(self._find_devices, {}, self.pool.view)
        node = self.bench.node
        self.gpu_copies = GpuCopyService(
            node.gpu_copies,
            node.engines,
            cast(NodeMemory, self.bench.memory),
            self.devices,
            CopyThreads(self.loop),
            lambda: self.bench.now,
        )
        self.server = LMCacheServer(
            GatewayOptions(url, self.folder, self._allow_clear, Timeouts()),
            self.loop,
            InProcess(node),
            cast(NamedFile, self.pool),
            lambda: None,
            lambda: self.bench.now,
            self.devices,
            self.holder,
            inherited=(),
            gpu_copies=self.gpu_copies,
            request_spans=RequestSpans(),
            on_hashed=None,
        )

    def client(self, *, greet: bool = True) -> Client:
        client = Client(self.server.url, self.turn, greet=greet)
        self._clients.append(client)
        return client

    def turn(self) -> None:
        """Let it serve what has come."""
        self.loop.once(0.0, self.loop.stop)
        self.loop.run()

    def pass_time(self, seconds: float) -> None:
        """Time passes for the core and the gateway."""
        self.bench.pass_time(seconds)
        self.server.tick()

    def stop(self) -> str:
        """End the gateway, as a process that is killed does: without a message. Return its URL."""
        url = self.server.url
        self.server.close()
        self.gpu_copies.close()
        self.devices.close()
        self.loop.close()
        return url

    def restart(self) -> None:
        self.begin(self.stop())

    def leased(self) -> int:
        """Counters that are up, of all engines together."""
        return sum(int(area.counters.sum()) for area in self.bench.memory.areas.values())

    def until(self, condition: Any, what: str) -> None:
        """Give turns until something holds, and the core to who does it meanwhile."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, what
            self.turn()
            time.sleep(0.0005)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.stop()
