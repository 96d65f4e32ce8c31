"""The interface for programs: the writer and the reader of a queue, over the ring, the codecs and the remote path."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

from dataplane.ipc.arguments import deadline_of, seconds, whole_number
from dataplane.ipc.processes import MAX_PID
from dataplane.ipc.queue.codecs import Codec, MsgspecCodec, PickleCodec, Reducers
from dataplane.ipc.queue.errors import QueueCancelled, QueueGone, UntrustedWriter, WriterGone
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
        others join at the current position. `max_readers`: slots for readers of this machine, expected ones included.
        `capacity_bytes`: size of the ring, at least 4096; a message of more than a quarter of it gets memory of its
        own. `slow_readers`: `wait` for them, or `drop` the messages that they have not read.
        `trusted`: pickle messages; only readers with `trusted` can read them. `reducers`: functions that replace
        `__reduce__` of these types. `remote`: `tcp://<address>[:<port>]` for readers on other machines, with an address
        that they can connect to. Raises ValueError, TypeError, ZMQError if the endpoint cannot be bound, and OSError if
        there is no memory.
        """
        if slow_readers not in ("wait", "drop"):
            raise ValueError(f"slow_readers: expected 'wait' or 'drop', not {slow_readers!r}")
        if remote and trusted:
            raise ValueError("trusted: pickled messages never travel over a socket; leave out `remote` or `trusted`")
        flags = (
            (Flag.DROP if slow_readers == "drop" else 0)
            | (Flag.CHECKSUM if checksums else 0)
            | (Flag.PICKLE if trusted else 0)
        )
        ring = ShmRingBuffer.create(name, capacity=capacity_bytes, slots=max_readers, reserved=readers, flags=flags)
        self._start(ring, reducers, remote)

    def _start(self, ring: ShmRingBuffer, reducers: Reducers | None, remote: str | None) -> None:
        try:
            if reducers and not ring.flags & Flag.PICKLE:
                raise ValueError("reducers: expected none without trusted=True: only pickled messages use them")
            self._writer = ShmRingWriter(ring)
        except BaseException:
            ring.close()
            raise
        self._codec: Codec = PickleCodec(reducers) if ring.flags & Flag.PICKLE else MsgspecCodec()
        self._remote: RemoteWriter | None = None
        if remote:
            from dataplane.ipc.queue.remote import RemoteWriter

            try:
                self._remote = RemoteWriter(ring, remote)
            except BaseException:
                self.close()
                raise

    @classmethod
    def take_over(cls, handle: QueueHandle, *, reducers: Reducers | None = None) -> Self:
        """Become the writer of a queue whose writer is gone; its readers continue.

        Readers on other machines connect again, and miss the messages of the time in between. Raises WriterAlive,
        QueueGone if no process holds the memory, ZMQError if the endpoint for other machines cannot be bound,
        TimeoutError, and OSError if this process has no free descriptor.
        """
        self = cls.__new__(cls)
        self._start(ShmRingBuffer.open(handle), reducers, handle.remote)
        return self

    def handle(self) -> QueueHandle:
        """Return what readers open. It holds no memory, and may be pickled or encoded by msgspec. Raises QueueError
        when the queue is closed."""
        self._writer.check_open()
        handle = self._writer.ring.handle()
        if self._remote is None:
            return handle
        return QueueHandle(handle.identity, handle.name, handle.pid, handle.fd, self._remote.endpoint, self._remote.key)

    def put(self, message: object, timeout: float | None = None) -> None:
        """Send a message to every reader.

        Waits for slow readers for at most `timeout` seconds (None: without a limit; readers that died do not count),
        then raises TimeoutError, and no reader gets the message. Raises QueueCancelled when another thread closes the
        queue, QueueError when it is closed, MessageTooLarge, TypeError for a value that has no form, and OSError if
        there is no descriptor or memory for a large message; then, too, no reader gets it.
        """
        deadline = deadline_of(timeout)
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
                try:
                    self._remote.send(payload, deadline)
                except BaseException:
                    writer.cancel_reserved()
                    raise
            writer.commit(payload)
        finally:
            lock.release()

    def expect(self, slot: int, pid: int) -> None:
        """Name the process that will join as an expected reader.

        If it exits before it joins, messages do not wait for it, and `wait_for_readers` raises ReaderGone. Without this
        call, the queue cannot know whether a process that has not joined yet still runs. Raises QueueError when the
        queue is closed, TimeoutError, ValueError, TypeError, and OSError if this process has no free descriptor.
        """
        slot = whole_number("slot", slot, 0, self._writer.ring.slots - 1)
        self._writer.expect(slot, whole_number("pid", pid, 1, MAX_PID))

    def wait_for_readers(self, count: int, timeout: float | None = None, *, remote: int = 0) -> None:
        """Wait until `count` readers of this machine and `remote` others have joined.

        Raises TimeoutError, ReaderGone if a process named by `expect` exited before it joined, QueueCancelled when
        another thread closes the queue, QueueError when it is closed, ValueError, and TypeError.
        """
        deadline = deadline_of(timeout)
        count = whole_number("count", count, 0, self._writer.ring.slots)
        if self._remote is None:
            if remote:
                raise ValueError("remote: expected 0, because the queue has no endpoint for other machines")
        else:
            take(self._writer._lock, deadline)
            try:
                self._writer.check_open()
                self._remote.wait_for_readers(remote, deadline)
            finally:
                self._writer._lock.release()
        self._writer.wait_for_readers(count, deadline)

    def cancel(self) -> None:
        """End the waits of other threads, and all later ones, with QueueCancelled, within a tenth of a second. A
        message for which there is room can still be put."""
        self._writer.cancel()
        if self._remote is not None:
            self._remote.cancel()

    def close(self, linger: float = 1.0) -> None:
        """End the queue, and waits of other threads: readers read what was put, then raise WriterGone.

        `linger`: longest wait, in seconds, for readers of large messages, and for data that is under way to readers on
        other machines.
        """
        end = time.monotonic() + seconds("linger", linger)
        self.cancel()
        with self._writer._lock:  # both ends in one step: no other call finds one of them open
            if self._remote is not None:
                self._remote.close(max(end - time.monotonic(), 0.0))
            self._writer.end(max(end - time.monotonic(), 0.0))

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
        all messages from the beginning; if a reader had that slot and left, the next one joins at the current position.
        `trusted`: unpickle the messages. `remote`: connect over ZeroMQ; None: only if the memory is not on this
        machine. Raises QueueGone, QueueFull, UntrustedWriter, TimeoutError, ValueError, TypeError, and OSError if this
        process has no free descriptor.
        """
        self._pid = os.getpid()
        self._thread: ThreadPoolExecutor | None = None
        """Waits for `receive`."""
        self._thread_lock = threading.Lock()
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
        except BaseException:
            ring.close()
            raise

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message.

        Waits at most `timeout` seconds (None: without a limit), then raises TimeoutError. Raises WriterGone when
        everything is read and no writer runs, MessageLost, CorruptMessage, QueueCancelled, QueueError when the reader
        is closed or has lost its slot, and OSError if this process has no free descriptor for a large message, which
        the next call reads again.
        """
        deadline = deadline_of(timeout)
        return self._reader.read(self._codec.decode, deadline)

    async def receive(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """`get` for asyncio: other tasks continue. A message is not lost when the task is cancelled."""
        deadline = deadline_of(timeout)
        while True:
            try:
                return self._reader.read(self._codec.decode, 0.0)
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            remaining_s = (
                _ASYNC_SLICE_S if deadline is None else min(_ASYNC_SLICE_S, max(deadline - time.monotonic(), 0.0))
            )
            with suppress(TimeoutError):  # another task may have all of the executor's time
                async with asyncio.timeout(remaining_s):
                    await self._wait_on_thread(remaining_s)

    def _wait_on_thread(self, wait_s: float) -> Awaitable[bool]:
        """Start `wait_for_messages` on the thread of this reader. Raises QueueCancelled when the reader is closed."""
        with self._thread_lock:
            if self._reader.closed:
                raise QueueCancelled("the reader was closed by another thread")
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "queue reader")
            return asyncio.wrap_future(self._thread.submit(self._reader.wait_for_messages, wait_s))

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield messages until the writer is gone."""
        while True:
            try:
                message = await self.receive()
            except WriterGone:
                return
            yield message

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Wait until the writer's `wait_for_readers` has returned. A reader on another machine does not wait. Raises
        TimeoutError, WriterGone, and QueueError when the reader is closed."""
        deadline = deadline_of(timeout)
        if isinstance(self._reader, ShmRingReader):
            self._reader.wait_until_ready(deadline)

    def cancel(self) -> None:
        """End a wait of another thread, or else the next wait, with QueueCancelled. Messages are not lost."""
        self._reader.cancel()

    def close(self) -> None:
        """Leave the queue; the writer waits for this reader no longer."""
        self._reader.close()
        if os.getpid() != self._pid:  # the thread is the parent's, as are the locks that other threads had
            return
        with self._thread_lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
