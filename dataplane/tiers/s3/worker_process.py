"""Starts the process that makes the requests of a tier, and exchanges messages with it. The process runs `worker`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Self

from dataplane.base.child_command import module_command
from dataplane.protocol.stored_blocks import Buffer, Outcome
from dataplane.tiers.s3.messages import (
    RECEIVE_BYTES,
    CancelRequest,
    FrameError,
    FrameReader,
    OpenBucket,
    RequestFault,
    StoreRequest,
    StoreRequestDone,
    StoreRequestFailed,
    StoreRequestFault,
    frame,
    replies,
)
from dataplane.tiers.s3.request_memory import MemoryRange, RequestMemory

_MODULE = "dataplane.tiers.s3.worker"
_TIMEOUT_S = 30
"""The process is killed if it reads nothing, or does not answer that a request was given up, for this many seconds.
Memory that is not used for about as long is released."""
_END_S = 5.0
_ENVIRONMENT = {
    "RUST_BACKTRACE": "0",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "2",
}
"""The process keeps memory that it frees. Otherwise each response would use new pages, which the kernel must clear."""


class PendingRequest(Future[StoreRequestDone]):
    """A request. A context manager, which releases the request at its end: it is given up if there is no reply, and its
    memory must no longer be used."""

    def __init__(self, process: WorkerProcess, memory_range: MemoryRange | None, memory: memoryview) -> None:
        super().__init__()
        self._process = process
        self.number = 0
        self.memory_range = memory_range
        self.memory = memory
        """Shared memory for the value of the object. The process may change it at any time."""
        self.released_at: float | None = None
        """When the request was released; None before."""

    def reply(self, deadline: float) -> StoreRequestDone:
        """Return the reply. Raises StoreRequestFailed, or TimeoutError if there is no reply by the deadline."""
        return self.result(max(0.0, deadline - time.monotonic()))

    def release(self) -> None:
        """Release the request and its memory. May be called twice."""
        self._process.release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class WorkerProcess:
    """Makes requests until it ends. Thread-safe."""

    def __init__(self, memory_bytes: int, cached_bytes: int) -> None:
        """Start the process, which may use at most `memory_bytes` bytes of memory of its own. Raises OSError.

        At most `cached_bytes` of the memory that it shares with this process stay allocated when unused. The process
        is killed if it keeps `memory_bytes` in use for requests that were given up.
        """
        self._memory_bytes = memory_bytes
        self._memory = RequestMemory(cached_bytes)
        self._sock, worker_sock = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _TIMEOUT_S, 0))
        descriptors = worker_sock.fileno(), self._memory.fd
        try:
            self._process = subprocess.Popen(
                module_command(_MODULE, *map(str, descriptors), str(memory_bytes)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=descriptors,
                env={**os.environ, **_ENVIRONMENT},
            )
        except OSError:
            self._sock.close()
            self._memory.close()
            raise
        finally:
            worker_sock.close()
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._last = 0
        self._pending: dict[int, PendingRequest] = {}
        self._given_up_bytes = 0
        """Bytes of memory of requests that were given up and that the process has not replied to."""
        self._failure: RequestFault | None = None
        """Why requests fail since the process has ended; None before."""
        self._closing = False
        self._thread = threading.Thread(target=self._serve_replies, name="s3-replies", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._failure is not None

    def open(self, message: OpenBucket) -> None:
        """Use this bucket for the requests that follow."""
        self._send(message)

    def request(
        self, make: Callable[[int, int], StoreRequest], size: int = 0, value: Sequence[Buffer] = ()
    ) -> PendingRequest:
        """Send the request that `make` returns for a number and the start of `size` bytes of shared memory, into which
        the value is copied. Raises OSError if there is no memory.

        The result of the request raises StoreRequestFailed. Its `release` must be called.
        """
        memory_range = self._memory.take(size) if size else None
        memory = memoryview(b"")
        if memory_range is not None:
            try:
                memory = self._memory.view(memory_range, size)
                self._memory.write(memory_range, value)
            except OSError:
                self._memory.give_back(memory_range, size)
                raise
        request = PendingRequest(self, memory_range, memory)
        with self._lock:
            if self._failure is not None:
                request.set_exception(StoreRequestFailed(self._failure))
                return request
            request.number = self._last = self._last + 1
            self._pending[request.number] = request
        self._send(make(request.number, memory_range.start if memory_range else 0))
        return request

    def release(self, request: PendingRequest) -> None:
        """Release a request and its memory. Give it up if there is no reply. May be called twice."""
        with self._lock:
            if request.released_at is not None:
                return
            request.released_at = time.monotonic()
            given_up = request.number in self._pending
            if given_up:
                self._given_up_bytes += len(request.memory)
            too_many = self._given_up_bytes > self._memory_bytes
        if not given_up:
            self._give_back(request)
        elif too_many:
            self._process.kill()
        else:
            self._send(CancelRequest(request.number))

    def _give_back(self, request: PendingRequest) -> None:
        if request.memory_range is not None:
            self._memory.give_back(request.memory_range, len(request.memory))

    def _send(self, message: OpenBucket | CancelRequest | StoreRequest) -> None:
        encoded = frame(message)
        with self._sending:
            if self.ended:
                return
            try:
                self._sock.sendall(encoded, socket.MSG_NOSIGNAL)
            except OSError:  # it has ended, or reads nothing; `_serve_replies` fails the requests
                self._process.kill()

    def _serve_replies(self) -> None:
        """Pass on replies until the process ends; then fail what is pending."""
        reason = ""
        frames = FrameReader(replies)
        try:
            while received := self._receive():
                for reply in frames.feed(received):
                    self._on_reply(reply)
        except (OSError, FrameError) as error:
            reason = str(error)
        self._process.kill()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it is in an uninterruptible system call; `Popen` reaps it later
            code = -signal.SIGKILL
        with self._lock:
            self._failure = RequestFault(Outcome.FAILED, self._why(code, reason))
            pending, self._pending = self._pending, {}
            given_up = [request for request in pending.values() if request.released_at is not None]
        for request in given_up:
            self._give_back(request)
        with self._sending:
            self._sock.close()
        self._memory.close()
        for request in pending.values():
            with contextlib.suppress(InvalidStateError):
                request.set_exception(StoreRequestFailed(self._failure))

    def _receive(self) -> bytes:
        """Return bytes from the process; none if the process has ended. Raises OSError, FrameError."""
        while True:
            try:
                return self._sock.recv(RECEIVE_BYTES)
            except BlockingIOError:  # nothing arrived for _TIMEOUT_S
                latest = time.monotonic() - _TIMEOUT_S
                with self._lock:
                    released = [request.released_at for request in self._pending.values()]
                if any(at is not None and at <= latest for at in released):
                    raise FrameError("it did not answer that a request was given up") from None
                self._memory.release()

    def _on_reply(self, reply: StoreRequestDone | StoreRequestFault) -> None:
        with self._lock:
            request = self._pending.get(reply.number)
            if request is None:
                raise FrameError(f"expected a reply to a request, got one to {reply.number}")
            if isinstance(reply, StoreRequestDone) and not 0 <= reply.size <= len(request.memory):
                raise FrameError(f"expected at most {len(request.memory)} bytes, got {reply.size}")
            del self._pending[reply.number]
            given_up = request.released_at is not None
            if given_up:
                self._given_up_bytes -= len(request.memory)
        if given_up:
            self._give_back(request)
        elif isinstance(reply, StoreRequestFault):
            request.set_exception(StoreRequestFailed(reply.fault))
        else:
            request.set_result(reply)

    def _why(self, code: int, reason: str) -> str:
        if self._closing:
            return "the tier is closed"
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        why = reason or "the server may have sent more than fits in memory"
        return f"the process that makes the requests ended ({ended}): {why}"

    def close(self) -> None:
        """End the process. Requests under way fail. May be called twice."""
        self._closing = True
        if not self.ended:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._process.kill()
        self._thread.join(_END_S)
