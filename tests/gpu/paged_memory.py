"""An engine's paged memory on a device, as tests see it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from dataplane.devices.runtime import DeviceEvent, DeviceStream
from tests.gpu.layouts import Layout
from tests.gpu.machines import WAIT_S, Bytes, Machine

POISON = 0xEE
OLD = [*range(1, 17), *range(70, 54, -1), *range(30, 46)]
NEW = [*range(46, 55), 17, 18, 19, 20, 21, 22, 23, *range(71, 79), *range(24, 30), 0, 79, *range(1, 17)]
"""Blocks of three chunks, in memory of 80 blocks."""


class PagedMemory:
    """Some layers in one allocation, and the events of the engine that computes in it."""

    def __init__(self, machine: Machine, kind: Layout) -> None:
        self.machine, self.kind = machine, kind
        self.address = machine.runtime.allocate(machine.device, kind.nbytes)
        self._events: list[DeviceEvent] = []
        self._streams: list[DeviceStream] = []

    def fill(self, seed: int) -> Bytes:
        content = np.random.default_rng(seed).integers(0, 256, self.kind.nbytes, np.uint8)
        self.machine.upload(self.address, content)
        return content

    def content(self) -> Bytes:
        return self.machine.download(self.address, self.kind.nbytes)

    def layers(self, numbers: Sequence[int], content: Bytes | None = None) -> list[Bytes]:
        """What some blocks hold, or held, in each layer, by numpy's own strides."""
        content = self.content() if content is None else content
        return [self.kind.layer(content, at)[list(numbers)] for at in range(len(self.kind.offsets))]

    def blocks(self, numbers: Sequence[int], content: Bytes | None = None) -> bytes:
        """What some blocks hold, or held, of all layers."""
        return b"".join(np.ascontiguousarray(layer).tobytes() for layer in self.layers(numbers, content))

    def others(self, numbers: Sequence[int]) -> bytes:
        """What all other blocks hold."""
        return self.blocks([each for each in range(self.kind.blocks) if each not in numbers])

    def digest(self, numbers: Sequence[int]) -> str:
        """Of what some blocks hold."""
        return sha256(self.blocks(numbers)).hexdigest()

    def holds(self, content: Bytes, old: Sequence[int], new: Sequence[int]) -> bool:
        """Blocks are now what others were."""
        return self.blocks(new) == self.blocks(old, content)

    def poisoned(self, numbers: Sequence[int]) -> bool:
        """Blocks came from a pool that was overwritten."""
        return all(bool((layer == POISON).all()) for layer in self.layers(numbers))

    def event(self) -> DeviceEvent:
        """One that other processes can open, recorded and done."""
        event, stream = self._recorded()
        stream.synchronize()
        return event

    def pending(self) -> DeviceEvent:
        """One behind work that is paused until `machine.emulator.pace.resume()`; only the emulated device."""
        reached = self.machine.emulator.pace.stop_after(0)
        event, _ = self._recorded(copied_bytes=4096)
        assert reached.wait(WAIT_S)
        return event

    def _recorded(self, copied_bytes: int = 0) -> tuple[DeviceEvent, DeviceStream]:
        event = self.machine.runtime.event(self.machine.device, shared=True)
        stream = self.machine.runtime.stream(self.machine.device)
        if copied_bytes:
            stream.copy(self.machine.host(copied_bytes)[0], self.address, copied_bytes)
        stream.record(event)
        self._events.append(event)
        self._streams.append(stream)
        return event, stream

    def free(self) -> None:
        for stream in self._streams:
            stream.close()
        for event in self._events:
            event.close()
        self.machine.runtime.free(self.address)
