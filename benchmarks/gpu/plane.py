"""A data plane that copies on the device that is measured, CUDA's or the emulated device's, and what it is
asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from dataplane.devices.find import find
from dataplane.devices.runtime import DeviceRuntime
from dataplane.protocol import codec
from dataplane.protocol.control.messages import ControlReply
from dataplane.protocol.control.nodes import DescribeNode, Description
from dataplane.protocol.control.records import PinSpec, encode_pins
from dataplane.protocol.control.snapshots import Bodies, NeedBodies, Snapshot, digest_of
from dataplane.protocol.stats.node import NodeStats
from tests.emulator.device import DEFAULT_UUID, EmulatedDevice

WAIT_S = 60.0
LOOK_S = 0.02
_ROOT = Path(__file__).parents[2]


class Plane:
    """Its sockets, and the other end of its control socket."""

    def __init__(self, folder: Path) -> None:
        self.engine_socket = str(folder / "engine.sock")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(f"ipc://{folder}/control.sock")
        self._replies = codec.decoder(ControlReply)
        self._generation = 0

    def pin(self, model: str, keys: bytes) -> None:
        """Have GPU copies of these blocks, and of no others. RuntimeError."""
        body = encode_pins([PinSpec("bench", model, "", digest_of(keys), tier="gpu")])
        self._generation += 1
        answer = self._request(Snapshot("pins", "bench", self._generation, "bench", digest_of(body), body))
        if isinstance(answer, NeedBodies):
            self._request(Bodies(answer.nonce, {digest_of(keys): keys}))

    def wait_for_gpu_copies(self, count: int) -> None:
        """RuntimeError when there are not so many in time."""
        deadline = time.monotonic() + WAIT_S
        while True:
            pools = self.describe().gpu_copy_pools
            if sum(pool.gpu_copies for pool in pools) == count:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {count} GPU copies within {WAIT_S:g} s: {pools}")
            time.sleep(LOOK_S)

    def describe(self) -> NodeStats:
        """Waits for one that is still starting."""
        answer = self._request(DescribeNode("bench"))
        if not isinstance(answer, Description):
            raise RuntimeError(f"the data plane answered {type(answer).__name__} where it was to describe itself")
        return answer.stats

    def _request(self, message: object) -> Any:
        self._socket.send(codec.encode(message))
        if not self._socket.poll(int(1000 * WAIT_S)):
            raise RuntimeError(f"no answer of the data plane within {WAIT_S:g} s")
        return codec.decode(self._replies, self._socket.recv())

    def __enter__(self) -> Plane:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()


@contextmanager
def plane_on(runtime: DeviceRuntime, pool_bytes: int, gpu_pool_bytes: int) -> Iterator[Plane]:
    """A process of its own, ready, and stopped at the end. RuntimeError when it does not come up."""
    with tempfile.TemporaryDirectory(prefix="larder-bench-", dir="/tmp") as name:
        folder = Path(name)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
        environ = inherited | {
            "LARDER_STATE_DIR": name,
            "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_POOL_BYTES": str(pool_bytes),
            "LARDER_DATAPLANE__GPU_POOL_BYTES": str(gpu_pool_bytes),
            "LARDER_DATAPLANE__PIN_BUDGET_RATIO": "0.9",
        }
        command = [sys.executable, "-m", "benchmarks.gpu.plane", runtime.name]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=_ROOT
            )
        try:
            with Plane(folder) as plane:
                plane.describe()
                yield plane
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


def _serve(kind: str) -> None:
    """The process itself."""
    from dataplane.base.log import configure
    from dataplane.compose import DataPlane
    from dataplane.settings import load

    emulated = EmulatedDevice([DEFAULT_UUID], 8 << 30) if kind == "emulated" else None
    log = configure()
    data_plane = DataPlane(load(), find_devices=find if emulated is None else lambda: emulated)
    signal.signal(signal.SIGTERM, lambda *_: data_plane.stop())
    data_plane.run()
    log.close()


if __name__ == "__main__":
    _serve(sys.argv[1])
