"""What the same tests run on: the emulated device, in every run, and CUDA where there is a GPU (`pytest -m gpu`)."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from dataplane.devices.find import find
from dataplane.devices.runtime import Device, DeviceRuntime
from tests.emulator.device import EmulatedDevice
from tests.forked import Forked

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
Bytes = npt.NDArray[np.uint8]


class Machine:
    """A runtime with one device, and other processes that have the same one."""

    def __init__(self, kind: str, uuid: str = "") -> None:
        """Raises DeviceError where there is none."""
        self.kind = kind
        self.uuid = uuid or str(uuid4())
        self.runtime: DeviceRuntime = EmulatedDevice([self.uuid]) if kind == "emulated" else find()
        self.device: Device = self.runtime.devices()[0]
        self._host: list[int] = []
        self._stream = self.runtime.stream(self.device)

    @property
    def slack_bytes(self) -> int:
        """By how much the device's memory in use may differ for reasons of the driver's own."""
        return 0 if self.kind == "emulated" else 64 << 20

    @property
    def emulator(self) -> EmulatedDevice:
        assert isinstance(self.runtime, EmulatedDevice)
        return self.runtime

    def host(self, nbytes: int) -> tuple[int, Bytes]:
        """Pinned host memory: its address, and an array over it."""
        address = self.runtime.allocate_host(nbytes)
        self._host.append(address)
        return address, array_at(address, nbytes)

    def upload(self, address: int, data: Bytes) -> None:
        at, host = self.host(len(data))
        host[:] = data
        self._stream.copy(address, at, len(data))
        self._stream.synchronize()
        self._give_back(at)

    def download(self, address: int, nbytes: int) -> Bytes:
        at, host = self.host(nbytes)
        self._stream.copy(at, address, nbytes)
        self._stream.synchronize()
        data = host.copy()
        self._give_back(at)
        return data

    def _give_back(self, address: int) -> None:
        self._host.remove(address)
        self.runtime.free_host(address)

    def start(self, role: str, **arguments: Any) -> Other:
        """Another process on this machine that does `role` of `tests.gpu.roles`."""
        return Other(role, {"kind": self.kind, "uuid": self.uuid, **arguments})

    def close(self) -> None:
        self._stream.close()
        for address in self._host:
            self.runtime.free_host(address)


def start_process(module: str, *arguments: str) -> Forked:
    return Forked(
        module, *arguments, env=dict(os.environ), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class Other:
    """One other process. It says a JSON line whenever it came so far, and goes on when it is asked to."""

    def __init__(self, role: str, arguments: dict[str, Any]) -> None:
        self.process = start_process("tests.gpu.roles", role, json.dumps(arguments))

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait(WAIT_S)}"
        return json.loads(line)

    def tell(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, **message: Any) -> dict[str, Any]:
        self.tell(**message)
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        """Until it has ended by itself: its input is closed."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return self.process.wait(WAIT_S)


def array_at(address: int, nbytes: int) -> Bytes:
    """Host memory as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


Start = Callable[..., Other]
