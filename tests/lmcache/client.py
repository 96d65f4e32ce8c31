"""A client of the gateway's wire, in plain pyzmq and msgspec: it can say anything, also what no client would."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Self

import msgspec
import zmq

WAIT_S = 60.0
MODEL = "llama"
GRACE_MS = 3000
NOTHING = object()
"""What is answered without a result frame."""


class Lost(Exception):
    """The connection closed under a request, and no answer came: ZeroMQ sends nothing twice."""


NUMBERS: dict[str, int | str] = {
    "register_kv_cache": 1,
    "unregister_kv_cache": 2,
    "register_q_cache": 3,
    "unregister_q_cache": 4,
    "store_q": 5,
    "store": 6,
    "retrieve": 7,
    "lookup": 8,
    "query_prefetch_status": 9,
    "wait_prefetch_status": 10,
    "free_lookup_locks": 12,
    "end_session": 13,
    "register_kv_cache_engine_driven_context": 14,
    "unregister_kv_cache_engine_driven_context": 15,
    "prepare_store": 16,
    "commit_store": 17,
    "prepare_retrieve": 18,
    "commit_retrieve": 19,
    "clear": 20,
    "get_chunk_size": 21,
    "ping": 22,
    "report_block_allocation": 23,
    "noop": 24,
    "get_experimental": 32,
    "negotiate_chunk_size": "negotiate_chunk_size",
}
"""As clients since 0.5.3 have them; what came later has only a name."""


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def key(tokens: Sequence[int], request: str = "r", **fields: Any) -> dict[str, Any]:
    """The key of an operation: all whole chunks of the tokens, of rank 0."""
    return {
        "model_name": MODEL,
        "world_size": 1,
        "worker_id": 0,
        "token_ids": list(tokens),
        "start": 0,
        "end": len(tokens) // 256 * 256,
        "request_id": request,
        "cache_salt": "",
        "request_configs": None,
        "num_kv_readers": 1,
        **fields,
    }


def in_bytes(older: dict[str, Any]) -> dict[str, Any]:
    """The same key as clients since 0.5.7 send it."""
    tokens = older["token_ids"]
    rest = {name: value for name, value in older.items() if name != "token_ids"}
    return {**rest, "token_bytes": struct.pack(f">{len(tokens)}I", *tokens)}


def lookup_key(tokens: Sequence[int], request: str = "r", **fields: Any) -> dict[str, Any]:
    return key(tokens, request, **{"worker_id": None, **fields})


def context(instance: int = 7, **fields: Any) -> dict[str, Any]:
    """A worker's registration: chunks of 2 layers of 256 slots of 8 float16, twice: 16 KiB."""
    return {
        "instance_id": instance,
        "model_name": MODEL,
        "world_size": 1,
        "block_size": 16,
        "num_layers": 2,
        "hidden_dim_size": 8,
        "dtype_str": "float16",
        "use_mla": False,
        "num_physical_slots": 256,
        **fields,
    }


CHUNK_BYTES = 2 * 2 * 256 * 8 * 2


class Client:
    """One connection."""

    def __init__(self, url: str, turn: Callable[[], None] | None = None, *, greet: bool = True) -> None:
        """`turn` lets a gateway in this process work; `greet` says what every client says first."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self._monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.connect(url)
        self._turn = turn
        self._uids = count(1)
        self.answered_twice = False
        """A data plane that is killed after it answered, and before it took the request off, is followed by one that
        answers again. Clients do not care."""
        self._last_uid = b""
        if greet:
            assert self.ask("get_chunk_size") == 256

    def wait_lost(self) -> None:
        """Until its connection is noticed to be gone: from then on requests wait for the next one."""
        assert self._monitor.poll(int(WAIT_S * 1000)), "the connection closes"
        self._monitor.recv_multipart()

    def was_lost(self) -> bool:
        """Whether its connection closed since that was asked last."""
        lost = False
        while self._monitor.poll(0):
            self._monitor.recv_multipart()
            lost = True
        return lost

    def send(self, frames: Sequence[bytes]) -> None:
        self.socket.send_multipart(list(frames))

    def receive(self, timeout_s: float = WAIT_S) -> list[bytes]:
        """The frames of the next answer."""
        if self._turn is None:
            deadline = time.monotonic() + timeout_s
            while not self.socket.poll(100):
                assert time.monotonic() < deadline, "the gateway answers"
                if self.was_lost() and not self.socket.poll(GRACE_MS):
                    raise Lost
        else:
            for _ in range(int(timeout_s * 1000)):
                if self.socket.poll(1):
                    break
                self._turn()
            else:
                raise AssertionError("the gateway answers")
        return self.socket.recv_multipart()

    def silent(self, timeout_s: float) -> bool:
        """Whether nothing comes for so long."""
        if self._turn is not None:
            for _ in range(20):
                self._turn()
        return not self.socket.poll(int(timeout_s * 1000))

    def call(self, operation: int | str, *arguments: bytes) -> list[bytes]:
        """Frames of the answer to encoded arguments; its uid and operation are those of the request."""
        head = [packed(next(self._uids)), packed(operation)]
        self.send([*head, *arguments])
        answer = self.receive()
        while self.answered_twice and answer[0] == self._last_uid:
            answer = self.receive()
        self._last_uid = head[0]
        assert answer[:2] == head
        return answer[2:]

    def ask(self, operation: str, *arguments: Any) -> Any:
        """The result, NOTHING when the frame is left out."""
        frames = self.call(NUMBERS[operation], *map(packed, arguments))
        assert len(frames) <= 1
        return msgspec.msgpack.decode(frames[0]) if frames else NOTHING

    def ask_by_name(self, operation: str, *arguments: Any) -> Any:
        frames = self.call(operation, *map(packed, arguments))
        return msgspec.msgpack.decode(frames[0]) if frames else NOTHING

    # ---- what engines do

    def register(self, instance: int = 7, **fields: Any) -> dict[str, Any]:
        return self.ask("register_kv_cache_engine_driven_context", context(instance, **fields))

    def lookup(self, tokens: Sequence[int], request: str = "r", **fields: Any) -> int:
        """Chunks that are found, held for the request."""
        assert self.ask("lookup", lookup_key(tokens, request, **fields), 1) is NOTHING
        return self.status(request)

    def status(self, request: str) -> int:
        return self.ask("query_prefetch_status", request)

    def prepare_store(self, tokens: Sequence[int], request: str = "r", instance: int = 7, **fields: Any) -> Any:
        return self.ask("prepare_store", key(tokens, request, **fields), instance)["context"]

    def commit_store(
        self, tokens: Sequence[int], request: str = "r", instance: int = 7, data: bytes = b"", **fields: Any
    ) -> bool:
        return self.ask("commit_store", key(tokens, request, **fields), instance, data)

    def store(self, tokens: Sequence[int], request: str = "r", instance: int = 7, **fields: Any) -> bool:
        """Prepare and commit, without writing anything; True when there was nothing to store too."""
        answer = self.prepare_store(tokens, request, instance, **fields)
        if "slots" in answer and not answer["slots"]:
            return True
        return self.commit_store(tokens, request, instance, **fields)

    def prepare_retrieve(self, tokens: Sequence[int], request: str = "r", instance: int = 7, **fields: Any) -> Any:
        return self.ask("prepare_retrieve", key(tokens, request, **fields), instance)

    def commit_retrieve(self, tokens: Sequence[int], request: str = "r", instance: int = 7, **fields: Any) -> bool:
        return self.ask("commit_retrieve", key(tokens, request, **fields), instance)

    def close(self) -> None:
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self._monitor.close()
        self.socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prompt(chunks: int, name: int = 0) -> list[int]:
    """Tokens of so many chunks, and a few more; equal names begin alike."""
    return [(name * 7919 + at * 31) % 50_000 + 300 for at in range(256 * chunks + 9)]
