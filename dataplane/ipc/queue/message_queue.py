"""The interface for programs: the writer and the reader of a queue, over the ring, the codecs and the remote path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

from dataplane.ipc.processes import MAX_PID
from dataplane.ipc.queue.codecs import Codec, MsgspecCodec, PickleCodec, Reducers
from dataplane.ipc.queue.errors import QueueError, QueueGone, UntrustedWriter, WriterGone
from dataplane.ipc.queue.layout import Flag
from dataplane.ipc.queue.reader import ShmRingReader
from dataplane.ipc.queue.ring import QueueHandle, ShmRingBuffer, take
from dataplane.ipc.queue.writer import ShmRingWriter

if TYPE_CHECKING:
    from dataplane.ipc.queue.remote import RemoteReader, RemoteWriter

CAPACITY_BYTES = 16 << 20
_ASYNC_SLICE_S = 0.25


class MessageQueue:
    """The writer of a queue. Threads may share it; a forked child may not."""

    def __init__(
        self,
        name: str = "queue",
        *,
        readers: int = 0,
        max_readers: int = 16,
        capacity_bytes: int = CAPACITY_BYTES,
        slow_readers: Literal["wait", "drop"] = "wait",
        checksums: bool = False,
        trusted: bool = False,
        reducers: Reducers | None = None,
        remote: str | None = None,
    ) -> None:
        """Create a queue.

        `readers`: number of expected readers, which get all messages from the beginning, each opened with its `slot`;
        others join at the current position. `capacity_bytes`: size of the ring; a message of more than a quarter of it
        gets memory of its own. `slow_readers`: `wait` for them, or `drop` the messages that they have not read.
        `trusted`: pickle messages; only readers with `trusted` can read them. `reducers`: functions that replace
        `__reduce__` of these types. `remote`: `tcp://<address>[:<port>]` for readers on other machines. Raises
        ValueError, and OSError if there is no memory.
        """
        if remote and trusted:
            raise ValueError(
                "trusted: pickled messages never travel over a socket; leave out `remote` or `trusted`"
            )
        flags = (
            (Flag.DROP if slow_readers == "drop" else 0)
            | (Flag.CHECKSUM if checksums else 0)
            | (Flag.PICKLE if trusted else 0)
        )
        ring = ShmRingBuffer.create(
            name, capacity=capacity_bytes, slots=max(max_readers, readers), reserved=readers, flags=flags
        )
        self._start(ring, reducers, remote)

    def _start(
        self, ring: ShmRingBuffer, reducers: Reducers | None, remote: str | None, key: bytes = b""
    ) -> None:
        try:
            self._writer = ShmRingWriter(ring)
        except BaseException:
            ring.close()
            raise
        self._codec: Codec = PickleCodec(reducers) if ring.flags & Flag.PICKLE else MsgspecCodec()
        self._remote: RemoteWriter | None = None
        if remote:
            from dataplane.ipc.queue.remote import RemoteWriter

            try:
                self._remote = RemoteWriter(ring, remote, key)
            except BaseException:
                self.close()
                raise

    @classmethod
    def take_over(cls, handle: QueueHandle, *, reducers: Reducers | None = None) -> Self:
        """Become the writer of a queue whose writer is gone; its readers continue.

        Readers on other machines connect again, and miss the messages of the time in between. Raises WriterAlive,
        QueueGone if no process holds the memory, and ZMQError if the endpoint for other machines cannot be bound.
        """
        self = cls.__new__(cls)
        self._start(ShmRingBuffer.open(handle), reducers, handle.remote, handle.remote_key)
        return self

    def handle(self) -> QueueHandle:
        """Return what readers open. It holds no memory, and may be pickled or encoded by msgspec."""
        handle = self._writer.ring.handle()
        if self._remote is None:
            return handle
        return QueueHandle(
            handle.identity, handle.name, handle.pid, handle.fd, self._remote.endpoint, self._remote.key
        )

    def put(self, message: object, timeout: float | None = None) -> None:
        """Send a message to every reader.

        Waits for slow readers for at most `timeout` seconds (None: without a limit; readers that died do not count),
        then raises TimeoutError, and no reader gets the message. Raises QueueCancelled when another thread closes the
        queue, and TypeError for a value that has no form.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        writer = self._writer
        lock = writer._lock
        if not lock.acquire(False):
            take(lock, deadline)
        try:
            payload = self._codec.encode(message)
            if self._remote is None and writer.write_now(payload):
                return
            writer.reserve(payload, deadline)
            if self._remote is not None:
                self._remote.send(payload, deadline)
            writer.commit(payload)
        finally:
            lock.release()

    def expect(self, slot: int, pid: int) -> None:
        """Name the process that will join as an expected reader.

        If it exits before it joins, messages do not wait for it, and `wait_for_readers` raises ReaderGone. Without this
        call, the queue cannot know whether a process that has not joined yet still runs. Raises ValueError.
        """
        slots = self._writer.ring.slots
        if not 0 <= slot < slots:
            raise ValueError(f"slot: expected 0 to {slots - 1}, not {slot}")
        if not 0 < pid <= MAX_PID:
            raise ValueError(f"pid: expected 1 to {MAX_PID}, not {pid}")
        self._writer.expect(slot, pid)

    def wait_for_readers(self, count: int, timeout: float | None = None, *, remote: int = 0) -> None:
        """Wait until `count` readers of this machine and `remote` others have joined.

        Raises TimeoutError, ReaderGone if a process named by `expect` exited before it joined, and QueueCancelled when
        another thread closes the queue.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._remote is not None:
            take(self._writer._lock, deadline)
            try:
                self._remote.wait_for_readers(remote, deadline)
            finally:
                self._writer._lock.release()
        self._writer.wait_for_readers(count, deadline)

    def close(self, linger: float = 1.0) -> None:
        """End the queue, and waits of other threads: readers read what was put, then raise WriterGone.

        `linger`: longest wait, in seconds, for readers of large messages.
        """
        self._writer.cancel()
        if self._remote is not None and not self._writer.closed:
            self._remote.cancel()
            with self._writer._lock:
                self._remote.close(linger)
        self._writer.close(linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class QueueReader:
    """A reader of a queue. Threads may share it, and each message goes to one of them; a forked child may not."""

    def __init__(
        self,
        handle: QueueHandle,
        *,
        message_type: Any = Any,
        slot: int | None = None,
        trusted: bool = False,
        remote: bool | None = None,
    ) -> None:
        """Join a queue at its current position.

        `message_type`: the type that messages are decoded as. `slot`: one of the expected `readers`, from 0, which gets
        all messages from the beginning. `trusted`: unpickle the messages. `remote`: connect over
        ZeroMQ; None: only if the memory is not on this machine. Raises QueueGone, QueueFull, and UntrustedWriter.
        """
        self._executor: ThreadPoolExecutor | None = None
        self._codec: Codec = MsgspecCodec(message_type)
        self._reader: ShmRingReader | RemoteReader
        ring = None
        if not remote:
            try:
                ring = ShmRingBuffer.open(handle)
            except QueueGone:
                if remote is False or handle.remote is None:
                    raise
        if ring is None:
            from dataplane.ipc.queue.remote import RemoteReader

            self._reader = RemoteReader(handle)
            return
        try:
            if ring.flags & Flag.PICKLE:
                if not trusted:
                    raise UntrustedWriter(f"{handle.name!r} is pickled: pass trusted=True to read it")
                self._codec = PickleCodec()
            self._reader = ShmRingReader(ring, slot)
        except QueueError:
            ring.close()
            raise

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message.

        Waits at most `timeout` seconds (None: without a limit), then raises TimeoutError. Raises WriterGone when
        everything is read and no writer runs, MessageLost, CorruptMessage, and QueueCancelled.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._reader.read(self._codec.decode, deadline)

    async def receive(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """`get` for asyncio: other tasks continue. A message is not lost when the task is cancelled."""
        deadline = None if timeout is None else time.monotonic() + timeout
        loop = asyncio.get_running_loop()
        while True:
            try:
                return self._reader.read(self._codec.decode, 0.0)
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "queue reader")
            left = _ASYNC_SLICE_S if deadline is None else min(_ASYNC_SLICE_S, deadline - time.monotonic())
            with suppress(TimeoutError):  # another task may have all of the executor's time
                async with asyncio.timeout(left):
                    await loop.run_in_executor(self._executor, self._reader.wait_for_messages, left)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield messages until the writer is gone."""
        while True:
            try:
                message = await self.receive()
            except WriterGone:
                return
            yield message

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Wait until the writer's `wait_for_readers` has returned. Raises TimeoutError, and WriterGone."""
        if isinstance(self._reader, ShmRingReader):
            self._reader.wait_until_ready(None if timeout is None else time.monotonic() + timeout)

    def cancel(self) -> None:
        """End a wait of another thread, or else the next wait, with QueueCancelled. Messages are not lost."""
        self._reader.cancel()

    def close(self) -> None:
        """Leave the queue; the writer waits for this reader no longer."""
        self._reader.close()
        if self._executor is not None:
            self._executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
