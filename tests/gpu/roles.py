"""Other processes of the tests: `python -m tests.gpu.roles ROLE ARGUMENTS`. They answer each JSON line with one."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from typing import Any

import msgspec

from tests.gpu.layouts import TOKENS, Layout, layout
from tests.gpu.machines import Machine
from tests.gpu.paged_memory import PagedMemory
from tests.gpu.role_parts import in_children, run_plane, serve
from tests.lmcache.client import Client, Lost, key, packed, prompt

INSTANCE = 7


class Engine:
    """A process with paged memory on a device, and a connection to a gateway."""

    def __init__(self, machine: Machine, kind: Layout, dtype: str) -> None:
        self.machine = machine
        self.kind = kind
        self.dtype = dtype
        self.memory = PagedMemory(machine, kind)
        self.address = self.memory.address
        self.client: Client | None = None

    # ---- commands

    def fill(self, seed: int) -> None:
        self.memory.fill(seed)

    def blocks(self, numbers: list[int]) -> dict[str, Any]:
        """A digest of what some blocks hold, of all layers, and one of all others."""
        others = [number for number in range(self.kind.blocks) if number not in numbers]
        return {"digest": self.memory.digest(numbers), "others": self.memory.digest(others)}

    def handle(self) -> dict[str, Any]:
        handle = self.machine.runtime.export(self.address, self.kind.nbytes)
        return {"body": handle.body.hex(), "offset": handle.offset, "nbytes": handle.nbytes}

    def event(self) -> dict[str, Any]:
        """An event for other processes, recorded and done."""
        return {"event": self.memory.event().export().hex()}

    def pending(self) -> dict[str, Any]:
        """An event behind work that is paused until `resume` (only the emulated device)."""
        return {"event": self.memory.pending().export().hex()}

    def resume(self) -> None:
        self.machine.emulator.pace.resume()

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

    def reconnect(self) -> None:
        """Until the connection that was lost is another one."""
        assert self.client is not None
        self.client.wait_lost()

    def unregister(self) -> None:
        assert self.client is not None
        self.client.ask("unregister_kv_cache", INSTANCE)

    def store(self, chunks: int, blocks: list[int], event: str | None = None, **fields: Any) -> dict[str, Any]:
        assert self.client is not None
        given = self.memory.event().export() if event is None else bytes.fromhex(event)
        arguments = key(prompt(chunks, **fields), f"s{chunks}"), INSTANCE, [blocks], given
        try:
            return {"result": self.client.ask("store", *arguments)[1]}
        except Lost:
            return {"result": None}

    def retrieve(
        self, chunks: int, blocks: list[int], skip: int = 0, event: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        assert self.client is not None
        given = self.memory.event().export() if event is None else bytes.fromhex(event)
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
    serve(made)


class PlaneCommands:
    """Commands to a data plane that runs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._reached = threading.Event()

    def stop_after(self, nbytes: int) -> None:
        """Stop its streams after so many bytes."""
        self._reached = self._machine.emulator.pace.stop_after(nbytes)

    def resume_for(self, nbytes: int) -> None:
        """Let its streams continue for so many bytes."""
        self._reached = self._machine.emulator.pace.resume_for(nbytes)

    def stopped(self) -> dict[str, Any]:
        """Wait until its streams have stopped."""
        return {"stopped": self._reached.wait(60)}


def commanded_plane(machine: Machine, arguments: dict[str, Any]) -> None:
    """A data plane that has the machine's devices and runs commands, with a holder if there is to be one."""

    def beside() -> None:
        threading.Thread(target=lambda: serve(PlaneCommands(machine)), daemon=True).start()

    run_plane(arguments["environ"], lambda: machine.runtime, beside, has_holder=bool(arguments.get("holder")))


def short_lived_workers(arguments: dict[str, Any]) -> None:
    """Each allocates, registers, stores and is killed."""

    def live(machine: Machine, number: int) -> None:
        made = Engine(machine, layout("latent attention", "float16", 16 << 10), "float16")
        made.connect(arguments["url"])
        assert made.store(1, list(range(1, 17)), name=number)["result"]

    in_children(arguments, live)


def main(role: str, arguments: dict[str, Any]) -> None:
    if role == "short_lived_workers":
        short_lived_workers(arguments)
        return
    machine = Machine(arguments["kind"], arguments["uuid"])
    {"engine": engine, "commanded_plane": commanded_plane}[role](machine, arguments)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
