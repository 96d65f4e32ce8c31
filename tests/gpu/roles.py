"""Other processes of the tests: `python -m tests.gpu.roles ROLE ARGUMENTS`. They answer each JSON line with one."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from dataplane.devices.runtime import DeviceEvent
from tests.gpu.layouts import TOKENS, Layout, layout
from tests.gpu.machines import Bytes, Machine
from tests.lmcache.client import Client, Lost, key, packed, prompt

INSTANCE = 7


def tell(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Engine:
    """A process with paged memory on a device, and a connection to a gateway."""

    def __init__(self, machine: Machine, kind: Layout, dtype: str) -> None:
        self.machine = machine
        self.kind = kind
        self.dtype = dtype
        self.address = machine.runtime.allocate(machine.device, kind.nbytes)
        self.client: Client | None = None
        self.events: list[DeviceEvent] = []

    # ---- commands

    def fill(self, seed: int) -> dict[str, Any]:
        content = np.random.default_rng(seed).integers(0, 256, self.kind.nbytes, np.uint8)
        self.machine.upload(self.address, content)
        return {}

    def blocks(self, numbers: list[int]) -> dict[str, Any]:
        """A digest of what some blocks hold, of all layers, and one of all others."""
        content = self.machine.download(self.address, self.kind.nbytes)
        others = [number for number in range(self.kind.blocks) if number not in numbers]
        return {"digest": self._digest(content, numbers), "others": self._digest(content, others)}

    def _digest(self, content: Bytes, numbers: list[int]) -> str:
        digest = sha256()
        for number in range(len(self.kind.offsets)):
            digest.update(np.ascontiguousarray(self.kind.layer(content, number)[numbers]).data)
        return digest.hexdigest()

    def handle(self) -> dict[str, Any]:
        handle = self.machine.runtime.export(self.address, self.kind.nbytes)
        return {"body": handle.body.hex(), "offset": handle.offset, "nbytes": handle.nbytes}

    def event(self) -> dict[str, Any]:
        """An event for other processes, recorded and done."""
        return {"event": self._event().hex()}

    def _event(self) -> bytes:
        event = self.machine.runtime.event(self.machine.device, shared=True)
        stream = self.machine.runtime.stream(self.machine.device)
        stream.record(event)
        self.events.append(event)
        return event.export()

    def pending(self) -> dict[str, Any]:
        """An event behind work that is paused until `resume` (only the emulated device)."""
        reached = self.machine.emulator.pace.stop_after(0)
        event = self.machine.runtime.event(self.machine.device, shared=True)
        stream = self.machine.runtime.stream(self.machine.device)
        at, _ = self.machine.host(4096)
        stream.copy(at, self.address, 4096)
        stream.record(event)
        self.events.append(event)
        assert reached.wait(60)
        return {"event": event.export().hex()}

    def resume(self) -> dict[str, Any]:
        self.machine.emulator.pace.resume()
        return {}

    def connect(self, url: str, **changes: Any) -> dict[str, Any]:
        self.client = Client(url)
        self.client.answered_twice = True
        answer = self.client.call(1, *map(packed, self.registration(**changes)))
        return {"registered": answer == []}

    def registration(self, **changes: Any) -> list[Any]:
        handle = self.machine.runtime.export(self.address, self.kind.nbytes)
        if "body" in changes:
            handle = replace(handle, body=bytes.fromhex(changes["body"]))
        wrappers = []
        for stride, offset in zip(self.kind.strides, self.kind.offsets, strict=True):
            metadata = {
                "dtype": self.dtype,
                "shape": self.kind.shape,
                "stride": stride,
                "storage_offset": offset,
                "device_uuid": changes.get("uuid", self.machine.device.uuid),
            }
            form = changes.get("form", "cuda")
            described: dict[str, Any] = {"type": form, "version": 1, "metadata": metadata}
            if form == "cuda":
                body = b"\x03c" + handle.body
                nbytes = changes.get("nbytes", handle.nbytes)
                described["handle"] = [0, body, nbytes, handle.offset, b"", 0, b"", False]
            else:
                described |= {"ipc_handle": handle.body, "alloc_offset": handle.offset, "nbytes": handle.nbytes}
            wrappers.append(msgspec.msgpack.Ext(1, packed(described)))
        group = {"layer_indices": list(range(len(wrappers))), "tokens_per_block": TOKENS}
        return [INSTANCE, wrappers, "llama", 1, "vllm", {"kv_layout": "NHD"}, [group]]

    def reconnect(self) -> dict[str, Any]:
        """Until the connection that was lost is another one."""
        assert self.client is not None
        self.client.wait_lost()
        return {}

    def unregister(self) -> dict[str, Any]:
        assert self.client is not None
        self.client.ask("unregister_kv_cache", INSTANCE)
        return {}

    def store(self, chunks: int, blocks: list[int], event: str | None = None, **fields: Any) -> dict[str, Any]:
        assert self.client is not None
        given = self._event() if event is None else bytes.fromhex(event)
        arguments = key(prompt(chunks, **fields), f"s{chunks}"), INSTANCE, [blocks], given
        try:
            return {"result": self.client.ask("store", *arguments)[1]}
        except Lost:
            return {"result": None}

    def retrieve(
        self, chunks: int, blocks: list[int], skip: int = 0, event: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        assert self.client is not None
        given = self._event() if event is None else bytes.fromhex(event)
        arguments = key(prompt(chunks, **fields), f"r{chunks}"), INSTANCE, [blocks], given, skip
        return {"result": self.client.ask("retrieve", *arguments)[1]}


def engine(machine: Machine, arguments: dict[str, Any]) -> None:
    """Runs the command of that name."""
    made = Engine(
        machine,
        layout(
            arguments.get("layout", "keys and values first, NHD"),
            arguments.get("dtype", "float16"),
            arguments.get("page_bytes", 16 << 10),
            blocks=arguments.get("blocks", 80),
        ),
        arguments.get("dtype", "float16"),
    )
    tell(ready=True)
    for line in sys.stdin:
        message = json.loads(line)
        tell(**getattr(made, message.pop("do"))(**message))


def plane(machine: Machine, arguments: dict[str, Any]) -> None:
    """A data plane that has the machine's devices; it stops in the middle of a copy when it is asked to."""
    from dataplane.compose import DataPlane
    from dataplane.observe.log import configure
    from dataplane.settings import load

    os.environ.update(arguments["environ"])
    log = configure()
    made = DataPlane(load(), find_devices=lambda: machine.runtime)
    signal.signal(signal.SIGTERM, lambda *_: made.stop())
    after = arguments.get("stop_after")
    if after is not None:
        reached = machine.emulator.pace.stop_after(after)

        def stopped() -> None:
            assert reached.wait(60)
            tell(stopped=True)

        threading.Thread(target=stopped, daemon=True).start()
    tell(ready=True)
    made.run()
    log.close()


def client(machine: Machine, arguments: dict[str, Any]) -> None:
    """An engine that copies by itself, stopped in the middle of its store."""
    from dataplane.client import Space, attach
    from dataplane.client.gpu import PagedCache

    kind = layout("keys and values first, NHD", "float16", 16 << 10)
    address = machine.runtime.allocate(machine.device, kind.nbytes)
    space = Space(model="gpu", block_bytes=kind.group().chunk_bytes)
    attached = attach(arguments["socket"], [space], timeout_s=30)
    cache = PagedCache(
        attached,
        machine.runtime,
        machine.device,
        kind.planes(),
        [address] * len(kind.offsets),
        blocks=kind.blocks,
        tokens_per_block=TOKENS,
    )
    reached = machine.emulator.pace.stop_after(arguments["stop_after"])
    tell(ready=True)
    reservation = attached.reserve([b"k" * 32], cache.chunk_bytes)
    store = cache.store(reservation, list(range(16))).all()
    assert reached.wait(60)
    tell(stopped=True)
    store.finish()


def short_lived_workers(machine_of: Callable[[], Machine], arguments: dict[str, Any]) -> None:
    """Engines one after another, `together` at a time: each allocates, registers, stores and is killed."""
    tell(ready=True)
    json.loads(sys.stdin.readline())
    left = int(arguments["count"])
    running: set[int] = set()
    failed = 0
    while left or running:
        while left and len(running) < int(arguments.get("together", 4)):
            left -= 1
            child = os.fork()
            if not child:
                made = Engine(machine_of(), layout("latent attention", "float16", 16 << 10), "float16")
                made.connect(arguments["url"])
                assert made.store(1, list(range(1, 17)), name=left)["result"]
                os.kill(os.getpid(), signal.SIGKILL)
            running.add(child)
        child, status = os.wait()
        running.discard(child)
        failed += os.WIFEXITED(status)
    tell(failed=failed)
    sys.stdin.readline()


def main(role: str, arguments: dict[str, Any]) -> None:
    if role == "short_lived_workers":  # CUDA does not survive a fork: each child begins for itself
        short_lived_workers(lambda: Machine(arguments["kind"], arguments["uuid"]), arguments)
        return
    machine = Machine(arguments["kind"], arguments["uuid"])
    {"engine": engine, "plane": plane, "client": client}[role](machine, arguments)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
