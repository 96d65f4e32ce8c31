"""A client of LMCache's wire in plain pyzmq: the same for both servers, and cheap enough not to be what is measured."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import zmq

CHUNK_TOKENS = 256
TIMEOUT_MS = 60_000
ID_CHARACTERS = 12
_PLACEHOLDER = "@" * ID_CHARACTERS

LOOKUP, STATUS, FREE_LOCKS, END_SESSION = 8, 9, 12, 13
REGISTER, UNREGISTER = 14, 15
PREPARE_STORE, COMMIT_STORE, PREPARE_RETRIEVE, COMMIT_RETRIEVE = 16, 17, 18, 19
CLEAR, CHUNK_SIZE, PING = 20, 21, 22

packed = msgspec.msgpack.Encoder().encode
unpacked = msgspec.msgpack.Decoder().decode
TRUE, ONE = packed(True), packed(1)
NOTHING = packed(None)


def request_id(number: int) -> bytes:
    """The name of a request; every one is as long."""
    return b"%0*d" % (ID_CHARACTERS, number)


def named(number: int) -> bytes:
    """The same as an argument."""
    return packed(request_id(number).decode())


class Key:
    """A key, encoded but for the name of its request, which takes one copy of its bytes."""

    def __init__(self, model: str, tokens: Sequence[int], *, worker: int | None, start: int = 0) -> None:
        encoded = packed(
            {
                "model_name": model,
                "world_size": 1,
                "worker_id": worker,
                "token_ids": list(tokens),
                "start": start,
                "end": len(tokens) // CHUNK_TOKENS * CHUNK_TOKENS,
                "request_id": _PLACEHOLDER,
                "cache_salt": "",
                "request_configs": None,
                "num_kv_readers": 1,
            }
        )
        self._before, _, self._after = encoded.partition(_PLACEHOLDER.encode())

    def of(self, number: int) -> bytes:
        return b"".join((self._before, request_id(number), self._after))


class Wire:
    """One connection."""

    def __init__(self, url: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = TIMEOUT_MS
        self.socket.connect(url)
        self._next = 0
        self.ask(CHUNK_SIZE)

    def send(self, operation: int, arguments: Iterable[bytes]) -> int:
        """Ask without waiting; the number that the answer has."""
        self._next += 1
        self.socket.send_multipart([packed(self._next), packed(operation), *arguments])
        return self._next

    def receive(self) -> tuple[int, bytes | None]:
        """The next answer: its number and its result. RuntimeError when none comes within a minute."""
        try:
            frames = self.socket.recv_multipart()
        except zmq.Again:
            raise RuntimeError(f"no answer within {TIMEOUT_MS // 1000} s") from None
        return unpacked(frames[0]), frames[2] if len(frames) > 2 else None

    def ask(self, operation: int, *arguments: bytes) -> Any:
        """Ask and wait; None where there is no result."""
        number = self.send(operation, arguments)
        answered, result = self.receive()
        if answered != number:
            raise RuntimeError("an answer to another request came")
        return None if result is None else unpacked(result)

    def status(self, number: int) -> int:
        """Chunks that a look-up found, once the server knows."""
        name = named(number)
        while (chunks := self.ask(STATUS, name)) is None:
            pass
        return int(chunks)

    def close(self) -> None:
        self.socket.close()
        self._context.term()
