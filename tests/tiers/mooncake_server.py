"""A real `mooncake_master`, and a client that gives it memory, of the environment that `make peers` builds."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import MOONCAKE, python
from tests.free_port import free_port
from tests.tiers.redis_server import wait_until

SEGMENT_BYTES = 512 << 20
PROGRAMS = [Path(sys.executable).parent]
"""Where Mooncake's programs may be."""
if (peer := python(MOONCAKE)) is not None:
    PROGRAMS.append(peer.parent)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site.addsitedir(str(peer.parents[1] / "lib" / version / "site-packages"))  # behind all others


class MooncakeServer:
    """The address of the master, and the client whose memory holds the values."""

    def __init__(self, address: str, client: Any, process: subprocess.Popen[bytes]) -> None:
        self.address, self.client, self.process = address, client, process


@contextmanager
def mooncake_server(folder: Path) -> Iterator[MooncakeServer]:
    """Run a master and a client with a segment, until the end."""
    from mooncake.store import MooncakeDistributedStore

    port = free_port()
    program = shutil.which("mooncake_master", path=os.pathsep.join(map(str, PROGRAMS))) or "mooncake_master"
    command = [program, f"--rpc_port={port}", f"--metrics_port={free_port()}"]
    with (folder / "master.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    client = MooncakeDistributedStore()
    address = f"127.0.0.1:{port}"

    def connected() -> bool:
        setup = ("127.0.0.1", "P2PHANDSHAKE", SEGMENT_BYTES, 64 << 20, "tcp", "", address)
        return process.poll() is None and client.setup(*setup) == 0

    try:
        wait_until(connected, "the master answers")
        yield MooncakeServer(address, client, process)
    finally:
        client.close()
        process.kill()
        process.wait(60)
