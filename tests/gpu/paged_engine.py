"""An engine that copies by itself: a client and a paged cache of this process, or of one of its own
(`python -m tests.gpu.paged_engine ARGUMENTS`, which does what JSON lines tell it)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from dataplane.client import Client, Space, attach
from dataplane.client.gpu import DeviceLoad, DeviceStore, PagedCache
from tests.dataplane.plane import wait_for
from tests.gpu.layouts import TOKENS, Layout, layout
from tests.gpu.machines import Machine, Other, array_at, start_process
from tests.gpu.paged_memory import NEW, OLD, POISON, PagedMemory
from tests.gpu.role_parts import serve

KIND = "keys and values first, NHD"
PAGE_BYTES = 16 << 10
BLOCKS = 80
PER_CHUNK = 16
WAIT_S = 60.0


KEYS = [bytes([number + 1]) * 32 for number in range(3)]


class PagedEngine(PagedMemory):
    """A client, and a paged cache over some layers."""

    def __init__(
        self, machine: Machine, socket: str, kind: Layout, group: str = "", client: Client | None = None, **options: Any
    ) -> None:
        super().__init__(machine, kind)
        space = Space(model="gpu", block_bytes=kind.group().chunk_bytes)
        self.client = client or attach(socket, [space], group=group, timeout_s=30)
        self.cache = PagedCache(
            self.client,
            machine.runtime,
            machine.device,
            kind.planes(),
            [self.address] * len(kind.offsets),
            blocks=kind.blocks,
            tokens_per_block=TOKENS,
            **options,
        )

    def store(self, keys: list[bytes] = KEYS, blocks: Sequence[int] = OLD) -> int:
        """How many chunks were stored."""
        reservation = self.client.reserve(keys, self.cache.chunk_bytes)
        return self.cache.store(reservation, list(blocks[: len(keys) * PER_CHUNK])).all().finish().blocks

    def begin_load(self, blocks: Sequence[int] = NEW, chunks: int = 3, first: int = 0) -> DeviceLoad:
        return self.cache.load(self.client.acquire(KEYS[:chunks]), list(blocks), first=first)

    def load(self, blocks: Sequence[int] = NEW, chunks: int = 3, first: int = 0) -> tuple[bool, int]:
        """Whether it went well, and how many chunks came from GPU copies."""
        load = self.begin_load(blocks, chunks, first)
        return load.finish(), load.gpu_copies

    def stopped_load(self) -> DeviceLoad:
        """A load that is stopped within its copies until `resume`; only the emulated device."""
        reached = self.machine.emulator.pace.stop_after(100_000)
        load = self.begin_load()
        assert reached.wait(WAIT_S)
        return load

    def stopped_store(self) -> DeviceStore:
        """A store that is stopped within its copies until `resume`; only the emulated device."""
        reached = self.machine.emulator.pace.stop_after(100_000)
        store = self.cache.store(self.client.reserve(KEYS, self.cache.chunk_bytes), OLD).all()
        assert reached.wait(WAIT_S)
        return store

    def resume(self) -> None:
        self.machine.emulator.pace.resume()

    def poison(self) -> None:
        """No block of the pool holds what was stored any more."""
        for memory in self.client.mapped:
            assert memory.writable
            array_at(memory.address, memory.nbytes)[:] = POISON

    def opened(self) -> int:
        """Allocations of others that this process has open; only the emulated device."""
        return len(self.machine.emulator._opened)

    def close(self) -> None:
        if self.machine.kind == "emulated":
            self.resume()
        self.cache.close()
        self.client.close()
        self.free()


class Process(Other):
    """One in a process of its own."""

    def __init__(self, machine: Machine, socket: str, **arguments: Any) -> None:
        options = {"kind": machine.kind, "uuid": machine.uuid, "socket": socket, **arguments}
        self.process = start_process("tests.gpu.paged_engine", json.dumps(options))
        assert self.hear() == {"ready": True}


class _Commands:
    """Commands to a process."""

    def __init__(self, engine: PagedEngine) -> None:
        self.engine = engine

    def load_gpu_copies(self) -> dict[str, Any]:
        """Until all of them come from there."""
        wait_for(lambda: self.engine.load() == (True, 3), "it reads GPU copies")
        return {"digest": self.engine.digest(NEW)}

    def stop_during_load(self) -> dict[str, Any]:
        self.stopped: DeviceLoad | DeviceStore = self.engine.stopped_load()
        return {"gpu_copies": self.stopped.gpu_copies}

    def stop_during_store(self) -> None:
        self.stopped = self.engine.stopped_store()


def main(arguments: dict[str, Any]) -> None:
    machine = Machine(arguments["kind"], arguments["uuid"])
    kind = layout(KIND, "float16", PAGE_BYTES, blocks=BLOCKS)
    serve(_Commands(PagedEngine(machine, arguments["socket"], kind)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
