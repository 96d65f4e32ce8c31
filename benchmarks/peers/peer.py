"""One of the two servers under measurement: a connection, a registered worker, and the memory as a client maps it."""

import mmap
import os
from pathlib import Path
from random import Random

import httpx

from benchmarks.peers.servers import Server
from benchmarks.peers.wire import (
    CHUNK_TOKENS,
    CLEAR,
    COMMIT_STORE,
    END_SESSION,
    LOOKUP,
    ONE,
    PREPARE_STORE,
    REGISTER,
    TRUE,
    UNREGISTER,
    Key,
    Wire,
    named,
    packed,
)

NO_BYTES = packed(b"")
VOCABULARY = 100_000
LAYERS = 4
SMALL_CHUNK_BYTES = 16 << 10
"""Where the bytes of a chunk do not matter."""


class Peer:
    """Speaks with one server."""

    def __init__(self, server: Server) -> None:
        self.name = server.name
        self.server = server
        self.wire = Wire(server.rpc_url)
        self.pool: mmap.mmap | None = None
        self.instance = b""
        """Of the worker, encoded."""
        self._registrations = 0
        self._requests = 0

    def next_request(self) -> int:
        """A number that no request had."""
        self._requests += 1
        return self._requests

    def register(self, model: str, chunk_bytes: int) -> None:
        """A worker of a model whose chunks have so many bytes; maps the memory. RuntimeError when there is none."""
        if self.pool is not None:
            self.wire.ask(UNREGISTER, self.instance)
            self.pool.close()
        self._registrations += 1
        self.instance = packed(self._registrations)
        hidden = chunk_bytes // (2 * LAYERS * CHUNK_TOKENS * 2)
        answer = self.wire.ask(
            REGISTER,
            packed(
                {
                    "instance_id": self._registrations,
                    "model_name": model,
                    "world_size": 1,
                    "block_size": 16,
                    "num_layers": LAYERS,
                    "hidden_dim_size": hidden,
                    "dtype_str": "float16",
                    "use_mla": False,
                    "num_physical_slots": CHUNK_TOKENS,
                }
            ),
        )
        if not answer["shm_name"]:
            raise RuntimeError(f"{self.name} names no shared memory")
        descriptor = os.open(f"/dev/shm/{answer['shm_name']}", os.O_RDWR)
        try:
            self.pool = mmap.mmap(descriptor, answer["pool_size"])
        finally:
            os.close(descriptor)

    def store_unwritten(self, key: Key) -> None:
        """Make a prompt present; nothing is written. RuntimeError when it is refused."""
        number = self.next_request()
        slots = self.wire.ask(PREPARE_STORE, key.of(number), self.instance)["context"].get("slots")
        if slots and not self.wire.ask(COMMIT_STORE, key.of(number), self.instance, NO_BYTES):
            raise RuntimeError(f"{self.name} refused a store")
        self.wire.ask(END_SESSION, named(number))

    def found(self, key: Key) -> int:
        """Chunks of a prompt that are there."""
        number = self.next_request()
        self.wire.ask(LOOKUP, key.of(number), ONE)
        chunks = self.wire.status(number)
        self.wire.ask(END_SESSION, named(number))
        return chunks

    def clear(self) -> None:
        self.wire.ask(CLEAR, TRUE)

    def resident_bytes(self) -> int:
        """Memory of the process that serves, without what it shares."""
        status = Path(f"/proc/{self._pid()}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1]) << 10

    def _pid(self) -> int:
        if self.name != "larder":
            return self.server.process.pid
        with httpx.Client(base_url=self.server.http_url, trust_env=False, timeout=30) as http:
            (node,) = http.get("/api/v1/nodes").json()["items"]
            return int(node["pid"])

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        self.wire.close()


def prompt(tokens: int, name: object) -> list[int]:
    """Tokens that follow from a name."""
    chance = Random(f"{tokens}/{name}")
    return [chance.randrange(VOCABULARY) for _ in range(tokens)]
