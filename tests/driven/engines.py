"""An engine with paged memory on a device, which lets the data plane copy; in this process, or in one of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataplane.client import Code, Space, attach
from dataplane.client.driven import Copy
from dataplane.client.engine_memory import chunk_layout, exported
from dataplane.devices.runtime import DeviceEvent, DeviceStream
from tests.gpu.layouts import CHUNK, TOKENS, Layout, layout
from tests.gpu.machines import Bytes, Machine, Other, start_process

WAIT_S = 60.0
PER_CHUNK = CHUNK // TOKENS
KIND = "keys and values first, NHD"


class Engine:
    """Its memory, and its client."""

    def __init__(self, machine: Machine, socket: str, kind: Layout, dtype: str, **options: Any) -> None:
        self.machine = machine
        self.kind = kind
        self.address = machine.runtime.allocate(machine.device, kind.nbytes)
        self.tensors = [
            exported(machine.runtime, self.address + offset * kind.item_bytes, dtype, kind.shape, stride)
            for stride, offset in zip(kind.strides, kind.offsets, strict=True)
        ]
        form, self.chunk_bytes = chunk_layout(self.tensors, tokens_per_block=TOKENS)
        self.space = Space(model="driven", layout=form, dtype=dtype, block_bytes=self.chunk_bytes)
        self.client = attach(socket, [self.space], **{"timeout_s": 30.0, **options})
        self._events: list[DeviceEvent] = []
        self._streams: list[DeviceStream] = []

    def register(self) -> Code | None:
        return self.client.register_cache(self.tensors, tokens_per_block=TOKENS)

    def fill(self, seed: int) -> None:
        content = np.random.default_rng(seed).integers(0, 256, self.kind.nbytes, np.uint8)
        self.machine.upload(self.address, content)

    def memory(self) -> Bytes:
        return self.machine.download(self.address, self.kind.nbytes)

    def blocks(self, numbers: Sequence[int], memory: Bytes | None = None) -> bytes:
        """What some blocks hold, of all layers, by numpy's own strides."""
        content = self.memory() if memory is None else memory
        return b"".join(
            np.ascontiguousarray(self.kind.layer(content, number)[list(numbers)]).tobytes()
            for number in range(len(self.kind.offsets))
        )

    def others(self, numbers: Sequence[int]) -> bytes:
        """What all other blocks hold."""
        return self.blocks([each for each in range(self.kind.blocks) if each not in numbers])

    def event(self) -> DeviceEvent:
        """One that other processes can open, recorded and done."""
        event = self.machine.runtime.event(self.machine.device, shared=True)
        stream = self.machine.runtime.stream(self.machine.device)
        stream.record(event)
        stream.synchronize()
        self._events.append(event)
        self._streams.append(stream)
        return event

    def pending(self) -> DeviceEvent:
        """One behind work that is paused until `machine.emulator.pace.resume()`."""
        reached = self.machine.emulator.pace.stop_after(0)
        event = self.machine.runtime.event(self.machine.device, shared=True)
        stream = self.machine.runtime.stream(self.machine.device)
        at, _ = self.machine.host(4096)
        stream.copy(at, self.address, 4096)
        stream.record(event)
        assert reached.wait(WAIT_S)
        self._events.append(event)
        self._streams.append(stream)
        return event

    def close(self) -> None:
        self.client.close()
        for stream in self._streams:
            stream.close()
        for event in self._events:
            event.close()
        self.machine.runtime.free(self.address)


def make(machine: Machine, socket: str, arguments: dict[str, Any], **options: Any) -> Engine:
    dtype = arguments.get("dtype", "float16")
    kind = layout(
        arguments.get("layout", KIND), dtype, arguments.get("page_bytes", 16 << 10), blocks=arguments.get("blocks", 40)
    )
    return Engine(machine, socket, kind, dtype, **options)


def done(copy: Copy) -> Copy:
    """A copy that has ended."""
    assert copy.wait(WAIT_S)
    return copy


class Process(Other):
    """Another process, of `tests.driven.roles`."""

    def __init__(self, role: str, arguments: dict[str, Any]) -> None:
        self.process = start_process("tests.driven.roles", role, json.dumps(arguments))
