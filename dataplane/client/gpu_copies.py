"""GPU copies of leased blocks, which an engine reads instead of the pool.

Each client has one object per device. It asks the data plane once for its table of GPU copies, and after that for
extents that a load finds in the table and that are not open in this process. For the theory, see
`dataplane.protocol.gpu_copies`. In short, the holder of a lease on a block also holds the block's GPU copy. A load
therefore only has to keep its lease until its copies have ended.

An extent that the data plane gave up is closed when the last load from it ends; the next message reports this. A
separate thread opens and closes extents. While the connection is lost, loads read the pool. When the same data plane
resumes the client, the object continues and repeats every message that the data plane may have missed. When the client
is attached to another data plane process, the object requests everything again, and closes the extents of the previous
process in the same way.

The start and the end of a copy do not wait for the client's lock, because another thread may hold it for as long as its
request is unanswered. Work that is skipped for this reason is done at the next call.

If there is no data plane, or if it has no GPU copies or is of an older release, no GPU copy is found, and no further
request is sent while that lasts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

import numpy as np

from dataplane.client import checks
from dataplane.client.attachment import AttachedMemory
from dataplane.client.leases import LeasedBlocks
from dataplane.client.link import EngineLink
from dataplane.client.memory import SharedMapping
from dataplane.devices.runtime import Device, DeviceError, DeviceRuntime, Handle, OpenedMemory
from dataplane.protocol import engine as wire
from dataplane.protocol.codes import Code, code_of
from dataplane.protocol.gpu_copies import MAX_EXTENTS, GpuCopyIndex
from dataplane.protocol.layout import H_MEMORY, LayoutError

RETRY_S = 10.0
"""Seconds before the client repeats a request that was refused or that ended a connection."""
EXTENT_TIMEOUT_S = 0.005
"""Seconds that a load waits for extents that it needs for the first time: as long as some chunks take to load out of
the pool. The next load uses extents that open later."""
ANSWER_S = 10.0
"""Seconds for which an unanswered question blocks further questions. Doubles with each further unanswered one."""
CLOSE_S = 60.0
"""Longest time in seconds that closing a client waits for the device to close extents."""
_LASTING = frozenset({Code.UNSUPPORTED, Code.MALFORMED, Code.NOT_ALLOWED})
"""Refusals that hold for a whole attachment. A data plane that does not know the question answers MALFORMED."""

_log = logging.getLogger("larder.client")


class OpenExtent:
    """An open extent with a count of its readers. It is closed when it is no longer needed and has no readers."""

    __slots__ = ("_opened", "address", "gone", "nbytes", "number", "plane", "users")

    def __init__(self, number: int, plane: int, opened: OpenedMemory, offset: int, nbytes: int) -> None:
        self.number = number
        self.plane = plane
        """Data plane that numbered the extent, as counted by the link."""
        self.address = opened.address + offset
        """Address in this process."""
        self.nbytes = nbytes
        self.users = 0
        self.gone = False
        """Whether to close it as soon as it has no readers."""
        self._opened = opened

    def close(self) -> None:
        """Close the extent. Raise DeviceError."""
        self._opened.close()


@dataclass(frozen=True, slots=True)
class GpuCopy:
    """Location of one block's GPU copy on the device."""

    extent: OpenExtent
    address: int


@dataclass(eq=False, slots=True)
class _Side:
    """State received from one data plane process."""

    memory: int
    """Identity of the index that the table belongs to."""
    table: GpuCopyIndex
    changes: int = -1
    grants: dict[int, wire.ExtentGrant] = field(default_factory=dict)
    """Extents that, as far as the data plane knows, may be open in this process."""
    open: dict[int, OpenExtent] = field(default_factory=dict)
    opening: set[int] = field(default_factory=set)
    """Extents that the thread is opening."""
    waiting: dict[int, float] = field(default_factory=dict)
    """Extents that were not granted or could not be opened, with the time at which each may be retried."""


@dataclass(eq=False, slots=True)
class _Question:
    """Question whose answer has not arrived."""

    extents: list[int]
    """Extents that may have been granted."""
    closed: list[int]


@dataclass(frozen=True, slots=True)
class _Answer:
    reply: wire.GpuCopiesMapped | wire.Refused
    number: int
    side: _Side | None
    """Side with the mapped table, if the question asked for the table."""


class Aside:
    """Runs work items one after another on a thread, which starts with the first item. The device may be slow, and
    closing waits for all work that runs on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._work.put(work)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=_run, args=(self._work,), name="larder-extents", daemon=True)
                self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait until all submitted work is done; return whether it is. Later work starts another thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            work, self._work = self._work, SimpleQueue()
        if thread is not None:
            work.put(None)
            thread.join(timeout_s)
            return not thread.is_alive()
        return True


def _run(waiting: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := waiting.get()) is not None:
        work()
        del work  # it refers to objects that may be collectable now


class GpuCopies:
    """GPU copies of one device, for one client. Shared by threads, and by paged caches (`enter`, `leave`)."""

    def __init__(self, link: EngineLink, memory: AttachedMemory, runtime: DeviceRuntime, device: Device) -> None:
        self._link = link
        """A thread that holds `_lock` must not wait for the lock of the link, only try to take it."""
        self._memory = memory
        self._runtime = runtime
        self._device = device
        self._lock = threading.RLock()
        self._opened = threading.Condition(self._lock)
        self._aside = Aside()
        self._attachment = 0
        self._plane = 0
        """Data plane, as counted by the link, that numbered these extents."""
        self._side: _Side | None = None
        self._request = 0
        """Number of the outstanding question, of which there is at most one."""
        self._request_until = 0.0
        self._questions: dict[int, _Question] = {}
        """Unanswered questions by number: the outstanding one and those that were given up."""
        self._answers: deque[_Answer] = deque()
        """Answers that a thread received under the client's lock and that are yet to be processed under `_lock`."""
        self._closed: list[int] = []
        """Extents closed here that the data plane has not been informed of. None of them is granted."""
        self._not_before = 0.0
        self._fault = ""
        """Fault in the data plane's messages about GPU copies that the link has not been informed of yet."""
        self._failed = False
        """Whether such a fault occurred in this attachment."""
        self._reported = ""
        self._caches = 0
        self._reading = 0
        self._ended = False

    # ---- for paged caches

    def enter(self) -> None:
        """Register one more cache, and ask for the table at once.

        The table then arrives, and the data plane prepares the device, while the engine is still starting. Otherwise
        the first load would have to wait for the table or do without it.
        """
        with self._lock:
            self._caches += 1
            self.look()

    def leave(self) -> None:
        """Unregister a cache whose copies have ended. After the last cache, close everything."""
        with self._lock:
            self._caches -= 1
            last = not self._caches
        if last:
            self._finish()

    def close(self) -> None:
        """Close every extent that no load reads, and open no more. Call this before the client detaches."""
        with self._lock:
            self._ended = True
        self._finish()

    @property
    def reading(self) -> bool:
        """Whether a load reads from an extent."""
        return self._reading > 0

    def look(self) -> None:
        """Process answers of the data plane, and start to close the extents that it gave up.

        Does not wait; cheap when there is nothing to do.
        """
        with self._lock:
            self._follow()
            if self._side is not None:
                self._tidy(self._side)
            self._report_closed()

    def find(self, leased: LeasedBlocks, nbytes: int) -> list[GpuCopy | None]:
        """Return the GPU copy, or None, of each leased block of size `nbytes`. The lease must last until `done`."""
        nowhere: list[GpuCopy | None] = [None] * len(leased.descriptors)
        with self._lock:
            self.look()
            side = self._side
            if self._ended or side is None or side.memory != int(leased.attachment.index.header[H_MEMORY]):
                return nowhere
            if not self._link.attached or self._link.attachments != self._attachment:
                # The memory may belong to a process that is gone. Drivers keep it for processes that have it open, but
                # no documentation guarantees this, and a failed copy there makes CUDA unusable for the whole engine.
                return nowhere
            extents, offsets = side.table.locations(leased.descriptors, leased.controls)
            extents[leased.nbytes != np.uint64(nbytes)] = 0
            extents_needed = np.unique(extents[extents != 0]).tolist()
            if not extents_needed:
                return nowhere
            self._ready(side, extents_needed)
            gpu_copies = list(nowhere)
            for at, (number, offset) in enumerate(zip(extents.tolist(), offsets.tolist(), strict=True)):
                extent = side.open.get(number) if number else None
                if extent is None:
                    continue
                if offset + nbytes > extent.nbytes:
                    self._protocol_failed(f"a GPU copy ends at {offset + nbytes} of an extent of {extent.nbytes} bytes")
                    return nowhere
                gpu_copies[at] = GpuCopy(extent, extent.address + offset)
            for extent in {gpu_copy.extent for gpu_copy in gpu_copies if gpu_copy is not None}:
                extent.users += 1
                self._reading += 1
            return gpu_copies

    def done(self, extents: Collection[OpenExtent]) -> None:
        """Record that a load no longer reads from `extents`."""
        with self._lock:
            for extent in extents:
                extent.users -= 1
                self._reading -= 1
                if extent.gone and not extent.users:
                    self._aside.submit(partial(self._close, extent))

    # ---- the data plane

    @contextmanager
    def _client(self) -> Iterator[bool]:
        """Take the client's lock unless another thread holds it. Yield whether it was taken."""
        lock = self._link.lock
        locked = lock.acquire(blocking=False)
        try:
            yield locked
        finally:
            if locked:
                lock.release()

    def _follow(self) -> None:
        """Process answers, detect another data plane, and ask for the table if that is due."""
        with self._client() as locked:
            if not locked:
                return
            if self._fault and self._link.attachments == self._attachment:
                self._link.protocol_failed(self._fault)
            self._fault = ""
            self._link.maintain()
            if self._questions:
                self._link.receive()
            if self._memory.planes != self._plane:
                self._forget()
            while self._answers:
                self._take(self._answers.popleft())
            now = time.monotonic()
            if self._link.attachments != self._attachment:
                # If a question ended the last connection, ask none for a while, so that the rest of the cache works.
                self._not_before = now + RETRY_S if self._request or self._failed else 0.0
                self._attachment, self._request, self._failed = self._link.attachments, 0, False
                for question in self._questions.values():  # the data plane may not have received it
                    self._queue_closing(question.closed + question.extents)
                self._questions.clear()
            if self._request and now >= self._request_until:
                self._queue_closing(self._questions[self._request].closed)
                self._request = 0
            due = self._side is None and not self._request and self._caches and not self._ended
            if due and self._link.attached and now >= self._not_before:
                self._post_question([], table=True)

    def _forget(self) -> None:
        """Discard the state of the previous data plane: it means nothing to the new one."""
        self._end()
        self._questions.clear()
        self._answers.clear()
        self._closed.clear()
        self._plane = self._memory.planes

    def _post_question(self, extents: list[int], *, table: bool, at_once: bool = False) -> None:
        """Post a question that also reports closed extents, if none is outstanding or `at_once` is set."""
        if self._request and not at_once:
            return
        with self._client() as locked:
            if not locked:
                return
            attachment = self._memory.current
            if attachment is None or self._link.attachments != self._attachment:
                return
            # Extents that are asked for come first: their closing must be reported before they are granted again.
            closed = sorted(self._closed, key=lambda extent: extent not in extents)[:MAX_EXTENTS]
            identity = int(attachment.index.header[H_MEMORY]), attachment.index.max_blocks
            uuid = self._device.uuid
            number = self._link.post(
                lambda number: wire.MapGpuCopies(number, uuid, extents, closed, table),
                partial(self._on_answer, identity, extents, table=table),
            )
            if not number:
                return
            self._request_until = time.monotonic() + ANSWER_S * 2 ** len(self._questions)
            self._request, self._questions[number] = number, _Question(extents, closed)
            self._closed = [extent for extent in self._closed if extent not in closed]

    def _on_answer(
        self, identity: tuple[int, int], extents: list[int], answer: wire.EngineReply, fds: list[int], *, table: bool
    ) -> None:
        """Queue an answer, under the client's lock. Raise ProtocolError if it does not match the question."""
        side = None
        checks.answers(wire.GpuCopiesMapped)(answer)
        assert isinstance(answer, (wire.GpuCopiesMapped, wire.Refused))
        if isinstance(answer, wire.GpuCopiesMapped):
            checks.gpu_copies_mapped(answer, extents, len(fds), table=table)
            if table:
                side = _mapped(fds[0], *identity)
        self._answers.append(_Answer(answer, answer.id, side))

    def _take(self, answer: _Answer) -> None:
        # A data plane that cannot read a question's number answers the oldest question. The link assumes the same.
        number = answer.number or min(self._questions, default=0)
        question = self._questions.pop(number, None)
        if question is None:
            return
        current = number == self._request
        if current:
            self._request = 0
        if isinstance(answer.reply, wire.Refused):
            code = code_of(answer.reply.code)
            lasting = code in _LASTING
            self._not_before = float("inf") if lasting else time.monotonic() + RETRY_S
            if current:  # otherwise they were put back when the question was given up
                self._queue_closing(question.closed)
            if not lasting:
                self._report(f"GPU copies are refused, the pool is read instead: {answer.reply.message}")
            return
        if self._side is None and self._caches and not self._ended:
            self._side = answer.side
        granted = {grant.extent: grant for grant in answer.reply.grants if grant.extent in question.extents}
        side = self._side
        if side is None:
            self._queue_closing(granted)
            return
        side.grants |= granted
        side.changes = -1  # a granted extent may have been given up since
        self._closed = [extent for extent in self._closed if extent not in granted]
        # Extents of another space, or given up meanwhile: asking again would change nothing.
        side.waiting |= {number: float("inf") for number in question.extents if number not in granted}

    def _protocol_failed(self, fault: str) -> None:
        self._end()
        self._not_before, self._failed, self._fault = float("inf"), True, fault
        self._follow()

    # ---- extents

    def _ready(self, side: _Side, extents_needed: list[int]) -> None:
        """Open these extents if possible. Ask for all that are not granted yet in one question."""
        now = time.monotonic()
        until = now + EXTENT_TIMEOUT_S
        extents_needed = [
            extent for extent in extents_needed if extent not in side.open and side.waiting.get(extent, 0.0) <= now
        ]
        if not extents_needed:
            return
        listed = set(side.table.extents())
        unknown = [extent for extent in extents_needed if extent in listed and extent not in side.grants]
        if unknown and now >= self._not_before:
            self._post_question(unknown[:MAX_EXTENTS], table=False)
            with self._client() as locked:
                if locked and self._request:
                    self._link.wait_for(self._request, EXTENT_TIMEOUT_S)
            self._follow()
        if self._side is not side:
            return
        for number in extents_needed:
            if number in side.grants and number not in side.opening:
                side.opening.add(number)
                self._aside.submit(partial(self._open, side, side.grants[number], self._plane))
        self._opened.wait_for(
            lambda: self._side is not side or side.opening.isdisjoint(extents_needed),
            max(0.0, until - time.monotonic()),
        )

    def _open(self, side: _Side, grant: wire.ExtentGrant, plane: int) -> None:
        """Open an extent. Runs on the extent thread."""
        number = grant.extent
        try:
            opened = self._runtime.open(Handle(grant.handle, grant.offset, grant.nbytes, self._device.uuid))
        except DeviceError as error:
            self._report(f"an extent of GPU copies could not be opened, the pool is read instead: {error}")
            with self._lock:
                side.waiting[number] = time.monotonic() + RETRY_S
                side.opening.discard(number)
                self._opened.notify_all()
                if plane == self._plane:
                    self._queue_closing([number])  # skipped while it is granted, and so may be retried
            return
        extent = OpenExtent(number, plane, opened, grant.offset, grant.nbytes)
        end = grant.offset + grant.nbytes
        with self._lock:
            is_needed = self._side is side and number in side.grants
            if is_needed and end <= opened.nbytes:
                side.open[number] = extent
                side.waiting.pop(number, None)
            side.opening.discard(number)
            self._opened.notify_all()
            if number in side.open:
                return
        self._close(extent)
        if is_needed:
            with self._lock:
                self._protocol_failed(f"an extent ends at {end} of an allocation of {opened.nbytes} bytes")

    def _tidy(self, side: _Side) -> None:
        """Release extents that the table no longer lists."""
        changes = side.table.changes
        if changes == side.changes:
            return
        side.changes = changes  # read before the list: a later removal is seen next time
        listed = set(side.table.extents())
        for number in [extent for extent in side.waiting if extent not in listed]:
            del side.waiting[number]
        self._release(side, [extent for extent in side.grants if extent not in listed])

    def _release(self, side: _Side, numbers: list[int]) -> None:
        """Release granted extents that are no longer needed."""
        for number in numbers:
            del side.grants[number]
            extent = side.open.pop(number, None)
            if extent is not None:
                extent.gone = True
                if not extent.users:
                    self._aside.submit(partial(self._close, extent))
            elif number not in side.opening:  # otherwise it is closed as soon as it is open
                self._queue_closing([number])

    def _close(self, extent: OpenExtent) -> None:
        """Close an extent. Runs on the extent thread."""
        try:
            extent.close()
        except DeviceError as error:
            self._report(f"an extent of GPU copies could not be closed: {error}")
        with self._lock:
            if extent.plane == self._plane:
                self._queue_closing([extent.number])
                self._report_closed()

    def _report(self, text: str) -> None:
        """Log a warning, once for consecutive repetitions."""
        if text != self._reported:
            self._reported = text
            _log.warning("larder.gpu %s", text)

    def _queue_closing(self, numbers: Iterable[int]) -> None:
        """Queue a report that these extents are closed here. Skip those that were granted again meanwhile."""
        granted = () if self._side is None else self._side.grants
        self._closed += [extent for extent in numbers if extent not in granted and extent not in self._closed]

    def _report_closed(self, *, at_once: bool = False) -> None:
        if self._closed and time.monotonic() >= self._not_before:
            self._post_question([], table=False, at_once=at_once)

    def _end(self) -> None:
        """Stop reading new GPU copies of this data plane process."""
        side, self._side = self._side, None
        if side is not None:
            self._release(side, list(side.grants))
            self._opened.notify_all()
        for question in self._questions.values():  # extents granted by it are not opened
            self._queue_closing(question.extents)
            question.extents = []

    def _finish(self) -> None:
        """Stop, wait until all extents without a load are closed, and report them. No look-up may follow.

        Extents that the device does not close within CLOSE_S are not reported as closed.
        """
        with self._lock:
            self._end()
        if not self._aside.join(CLOSE_S):
            self._report(f"extents of GPU copies are not closed after {CLOSE_S:g} s: the device does not answer")
        with self._link.lock, self._lock:
            self._follow()
            self._report_closed(at_once=True)


def _mapped(fd: int, memory: int, max_blocks: int) -> _Side:
    """Map the table of GPU copies. Raise ProtocolError."""
    try:
        mapping = SharedMapping.map(fd, writable=False)
        table = GpuCopyIndex.attach(mapping.view(), memory)
    except (LayoutError, ValueError) as error:
        raise checks.fault(f"GPU copies mapped: {error}") from None
    if table.max_blocks != max_blocks:
        raise checks.fault(f"GPU copies mapped: a table of {table.max_blocks} blocks for an index of {max_blocks}")
    return _Side(memory, table)
