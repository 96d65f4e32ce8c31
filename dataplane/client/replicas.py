"""Replicas of leased blocks in a device's memory: where an engine reads them instead of in the pool.

One object for each client and device. The data plane is asked once for its table of replicas, and then for extents
that a load met there and that are not open in this process. Theory: `dataplane.protocol.replicas`; in short, whoever
holds a lease on a block holds its replica, so a load keeps its lease until the copies have ended, and nothing else.

An extent that the data plane gave up is closed when no load reads from it any more, which is said with the next
message. Extents are opened and closed on a thread of their own. While the connection is lost the pool is read; when the
same data plane takes the client up again, all goes on, and what it may not have heard is said once more. When the
client is attached to another data plane process, everything is asked for anew, and what the one before had is closed in
the same way.

The client's lock is not waited for while a copy begins or ends: another thread may hold it as long as its request has
no answer. What is not looked at then is looked at the next time.

No data plane, one without replicas, or one of an older release: nothing is found, and nothing is asked again while that
lasts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dataplane.client import checks
from dataplane.client.extents import Aside, Extent
from dataplane.client.leases import Held
from dataplane.client.link import Link
from dataplane.client.memory import Memory
from dataplane.devices.runtime import Device, DeviceError, Handle, Runtime
from dataplane.protocol import engine as wire
from dataplane.protocol.codes import Code, code_of
from dataplane.protocol.layout import H_MEMORY, LayoutError
from dataplane.protocol.replicas import MAX_EXTENTS, ReplicaTable

RETRY_S = 10.0
"""What was refused, or ended a connection, is not tried again before."""
PATIENCE_S = 0.005
"""So long a load waits for extents that it met for the first time: as long as some chunks take out of the pool. What
comes later is there for the next load."""
ANSWER_S = 10.0
"""A question without an answer keeps others from being asked for so long, and after each one more twice as long."""
_LASTING = frozenset({Code.UNSUPPORTED, Code.MALFORMED, Code.NOT_ALLOWED})
"""Refusals that hold for an attachment. A data plane that does not know the question says MALFORMED."""

_log = logging.getLogger("larder.client")


@dataclass(frozen=True, slots=True)
class Replica:
    """Where one block is on the device."""

    extent: Extent
    address: int


@dataclass(eq=False, slots=True)
class _Side:
    """What one data plane process said."""

    memory: int
    """Identity of the index that the table goes with."""
    table: ReplicaTable
    changes: int = -1
    grants: dict[int, wire.ReplicaGrant] = field(default_factory=dict)
    """Extents that may be open here, as far as the data plane knows."""
    open: dict[int, Extent] = field(default_factory=dict)
    opening: set[int] = field(default_factory=set)
    """Those that the thread was told to open."""
    waiting: dict[int, float] = field(default_factory=dict)
    """Extents that were not granted, or could not be opened, and when they may be tried again."""


@dataclass(eq=False, slots=True)
class _Question:
    """One that was not heard to be answered."""

    extents: list[int]
    """Those that may have been granted."""
    closed: list[int]


@dataclass(frozen=True, slots=True)
class _Answer:
    said: wire.ReplicasMapped | wire.Refused
    number: int
    side: _Side | None
    """Where the table was asked for."""


class Replicas:
    """Those of one device, for one client. May be shared by threads and by paged caches; `enter` and `leave` say how
    many there are."""

    def __init__(self, link: Link, client_lock: threading.RLock, runtime: Runtime, device: Device) -> None:
        self._link = link
        self._client_lock = client_lock
        """Waited for without `_lock` alone: who has that only tries."""
        self._runtime = runtime
        self._device = device
        self._lock = threading.RLock()
        self._opened = threading.Condition(self._lock)
        self._aside = Aside("larder-extents")
        self._attachment = 0
        self._plane = 0
        """Whose numbers of extents these are."""
        self._side: _Side | None = None
        self._asked = 0
        """Number of the question whose answer is waited for; one at a time."""
        self._asked_until = 0.0
        self._unheard: dict[int, _Question] = {}
        """By number: that one, and those that were given up."""
        self._answers: deque[_Answer] = deque()
        """Heard under the client's lock, in whichever thread; taken in under ours."""
        self._closed: list[int] = []
        """What the data plane was not told yet: nothing of it is granted."""
        self._not_before = 0.0
        self._fault = ""
        """What the data plane said of replicas was wrong, and the link does not know yet."""
        self._failed = False
        """It was, in this attachment."""
        self._told = ""
        self._caches = 0
        self._reading = 0
        self._ended = False

    # ---- for paged caches

    def enter(self) -> None:
        """One more cache. Asks for the table at once: it comes, and the data plane readies the device, while the engine
        is busy with other things. The first load would wait for it, or do without."""
        with self._lock:
            self._caches += 1
            self.look()

    def leave(self) -> None:
        """A cache ended, and its copies have. With the last one everything is closed."""
        with self._lock:
            self._caches -= 1
            last = not self._caches
        if last:
            self._finish()

    def close(self) -> None:
        """The client is about to say goodbye: what no load reads is closed, and nothing is opened any more."""
        with self._lock:
            self._ended = True
        self._finish()

    @property
    def reading(self) -> bool:
        """Some load reads from an extent."""
        return self._reading > 0

    def look(self) -> None:
        """Take in what the data plane said, and have closed what it gave up. Waits for nothing; cheap when nothing is
        new."""
        with self._lock:
            self._follow()
            if self._side is not None:
                self._tidy(self._side)
            self._tell_closed()

    def find(self, held: Held, nbytes: int) -> list[Replica | None]:
        """Where leased blocks, of which `nbytes` are wanted, are on the device. The lease lasts until `done`."""
        nowhere: list[Replica | None] = [None] * len(held.descriptors)
        with self._lock:
            self.look()
            side = self._side
            if self._ended or side is None or side.memory != int(held.world.index.header[H_MEMORY]):
                return nowhere
            if not self._link.attached or self._link.attachments != self._attachment:
                # The memory may be that of a process that is gone. Drivers keep it for those who have it open, but no
                # documentation says so, and a copy that fails there takes all of CUDA from the engine.
                return nowhere
            extents, offsets = side.table.places(held.descriptors, held.controls)
            extents[held.nbytes != np.uint64(nbytes)] = 0
            wanted = np.unique(extents[extents != 0]).tolist()
            if not wanted:
                return nowhere
            self._ready(side, wanted)
            found = list(nowhere)
            for at, (number, offset) in enumerate(zip(extents.tolist(), offsets.tolist(), strict=True)):
                extent = side.open.get(number) if number else None
                if extent is None:
                    continue
                if offset + nbytes > extent.nbytes:
                    self._distrust(
                        f"a replica ends at {offset + nbytes} of an extent of {extent.nbytes} bytes"
                    )
                    return nowhere
                found[at] = Replica(extent, extent.address + offset)
            for extent in {replica.extent for replica in found if replica is not None}:
                extent.users += 1
                self._reading += 1
            return found

    def done(self, extents: Collection[Extent]) -> None:
        """A load does not read from them any more."""
        with self._lock:
            for extent in extents:
                extent.users -= 1
                self._reading -= 1
                if extent.gone and not extent.users:
                    self._aside.submit(partial(self._close, extent))

    # ---- the data plane

    @contextmanager
    def _client(self) -> Iterator[bool]:
        """The client's lock, unless another thread has it."""
        mine = self._client_lock.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._client_lock.release()

    def _follow(self) -> None:
        """Take in what was answered, notice another data plane, and ask for the table where that is due."""
        with self._client() as mine:
            if not mine:
                return
            if self._fault and self._link.attachments == self._attachment:
                self._link.distrust(self._fault)
            self._fault = ""
            self._link.maintain()
            if self._unheard:
                self._link.hear()
            if self._link.planes != self._plane:
                self._forget()
            while self._answers:
                self._take(self._answers.popleft())
            now = time.monotonic()
            if self._link.attachments != self._attachment:
                # One that was lost over a question is asked none for a while: the rest of the cache goes on.
                self._not_before = now + RETRY_S if self._asked or self._failed else 0.0
                self._attachment, self._asked, self._failed = self._link.attachments, 0, False
                for question in self._unheard.values():  # whether it was heard there is not known
                    self._owe(question.closed + question.extents)
                self._unheard.clear()
            if self._asked and now >= self._asked_until:
                self._owe(self._unheard[self._asked].closed)
                self._asked = 0
            due = self._side is None and not self._asked and self._caches and not self._ended
            if due and self._link.attached and now >= self._not_before:
                self._ask([], table=True)

    def _forget(self) -> None:
        """Another data plane: what was said by and to the one before means nothing to it."""
        self._end()
        self._unheard.clear()
        self._answers.clear()
        self._closed.clear()
        self._plane = self._link.planes

    def _ask(self, extents: list[int], *, table: bool, at_once: bool = False) -> None:
        """Post a question, if none is under way or `at_once`. What was closed goes along."""
        if self._asked and not at_once:
            return
        with self._client() as mine:
            if not mine:
                return
            world = self._link.world
            if world is None or self._link.attachments != self._attachment:
                return
            # What is asked for goes first: it is closed before it is granted anew.
            closed = sorted(self._closed, key=lambda each: each not in extents)[:MAX_EXTENTS]
            identity = int(world.index.header[H_MEMORY]), world.index.max_blocks
            uuid = self._device.uuid
            number = self._link.post(
                lambda number: wire.MapReplicas(number, uuid, extents, closed, table),
                partial(self._hear, identity, extents, table=table),
            )
            if not number:
                return
            self._asked_until = time.monotonic() + ANSWER_S * 2 ** len(self._unheard)
            self._asked, self._unheard[number] = number, _Question(extents, closed)
            self._closed = [each for each in self._closed if each not in closed]

    def _hear(
        self,
        identity: tuple[int, int],
        extents: list[int],
        answer: wire.EngineReply,
        fds: list[int],
        *,
        table: bool,
    ) -> None:
        """Under the client's lock. Raises ProtocolError for what is no answer to the question."""
        side = None
        checks.answers(wire.ReplicasMapped)(answer)
        assert isinstance(answer, (wire.ReplicasMapped, wire.Refused))
        if isinstance(answer, wire.ReplicasMapped):
            checks.replicas_mapped(answer, extents, len(fds), table=table)
            if table:
                side = _mapped(fds[0], *identity)
        self._answers.append(_Answer(answer, answer.id, side))

    def _take(self, answer: _Answer) -> None:
        # One that cannot read the number of a question answers the oldest one, as the link has it.
        number = answer.number or min(self._unheard, default=0)
        question = self._unheard.pop(number, None)
        if question is None:
            return
        current = number == self._asked
        if current:
            self._asked = 0
        if isinstance(answer.said, wire.Refused):
            code = code_of(answer.said.code)
            lasting = code in _LASTING
            self._not_before = float("inf") if lasting else time.monotonic() + RETRY_S
            if current:  # else they were put back when it was given up
                self._owe(question.closed)
            if not lasting:
                self._tell(f"replicas are refused, the pool is read instead: {answer.said.message}")
            return
        if self._side is None and self._caches and not self._ended:
            self._side = answer.side
        granted = {grant.extent: grant for grant in answer.said.grants if grant.extent in question.extents}
        side = self._side
        if side is None:
            self._owe(granted)
            return
        side.grants |= granted
        side.changes = -1  # one of them may have gone since
        self._closed = [each for each in self._closed if each not in granted]
        # Of another space, or given up meanwhile: asking again would change nothing.
        side.waiting |= {number: float("inf") for number in question.extents if number not in granted}

    def _distrust(self, fault: str) -> None:
        self._end()
        self._not_before, self._failed, self._fault = float("inf"), True, fault
        self._follow()

    # ---- extents

    def _ready(self, side: _Side, wanted: list[int]) -> None:
        """Have these extents open, as far as that can be. Those that are not known are asked for, all at once."""
        now = time.monotonic()
        until = now + PATIENCE_S
        wanted = [each for each in wanted if each not in side.open and side.waiting.get(each, 0.0) <= now]
        if not wanted:
            return
        listed = set(side.table.extents())
        unknown = [each for each in wanted if each in listed and each not in side.grants]
        if unknown and now >= self._not_before:
            self._ask(unknown[:MAX_EXTENTS], table=False)
            with self._client() as mine:
                if mine and self._asked:
                    self._link.wait_for(self._asked, PATIENCE_S)
            self._follow()
        if self._side is not side:
            return
        for number in wanted:
            if number in side.grants and number not in side.opening:
                side.opening.add(number)
                self._aside.submit(partial(self._open, side, side.grants[number], self._plane))
        self._opened.wait_for(
            lambda: self._side is not side or side.opening.isdisjoint(wanted),
            max(0.0, until - time.monotonic()),
        )

    def _open(self, side: _Side, grant: wire.ReplicaGrant, plane: int) -> None:
        """On the thread."""
        number = grant.extent
        try:
            opened = self._runtime.open(Handle(grant.handle, grant.offset, grant.nbytes, self._device.uuid))
        except DeviceError as error:
            self._tell(f"an extent of replicas could not be opened, the pool is read instead: {error}")
            with self._lock:
                side.waiting[number] = time.monotonic() + RETRY_S
                side.opening.discard(number)
                self._opened.notify_all()
                if plane == self._plane:
                    self._owe([number])  # unless it may be tried again
            return
        extent = Extent(number, plane, opened, grant.offset, grant.nbytes)
        end = grant.offset + grant.nbytes
        with self._lock:
            wanted = self._side is side and number in side.grants
            if wanted and end <= opened.nbytes:
                side.open[number] = extent
                side.waiting.pop(number, None)
            side.opening.discard(number)
            self._opened.notify_all()
            if number in side.open:
                return
        self._close(extent)
        if wanted:
            with self._lock:
                self._distrust(f"an extent ends at {end} of an allocation of {opened.nbytes} bytes")

    def _tidy(self, side: _Side) -> None:
        """Let extents go that the table does not list any more."""
        changes = side.table.changes
        if changes == side.changes:
            return
        side.changes = changes  # read before the list: what goes after that is seen next time
        listed = set(side.table.extents())
        for number in [each for each in side.waiting if each not in listed]:
            del side.waiting[number]
        self._let_go(side, [each for each in side.grants if each not in listed])

    def _let_go(self, side: _Side, numbers: list[int]) -> None:
        """Granted extents are of no use any more."""
        for number in numbers:
            del side.grants[number]
            extent = side.open.pop(number, None)
            if extent is not None:
                extent.gone = True
                if not extent.users:
                    self._aside.submit(partial(self._close, extent))
            elif number not in side.opening:  # else it is closed as soon as it is open
                self._owe([number])

    def _close(self, extent: Extent) -> None:
        """On the thread."""
        try:
            extent.close()
        except DeviceError as error:
            self._tell(f"an extent of replicas could not be closed: {error}")
        with self._lock:
            if extent.plane == self._plane:
                self._owe([extent.number])
                self._tell_closed()

    def _tell(self, text: str) -> None:
        """Once, however often it is tried."""
        if text != self._told:
            self._told = text
            _log.warning("larder.gpu %s", text)

    def _owe(self, numbers: Iterable[int]) -> None:
        """These are not open here, which the data plane is to be told. What was granted anew meanwhile is."""
        granted = () if self._side is None else self._side.grants
        self._closed += [each for each in numbers if each not in granted and each not in self._closed]

    def _tell_closed(self, *, at_once: bool = False) -> None:
        if self._closed and time.monotonic() >= self._not_before:
            self._ask([], table=False, at_once=at_once)

    def _end(self) -> None:
        """Nothing of this data plane process is read anew."""
        side, self._side = self._side, None
        if side is not None:
            self._let_go(side, list(side.grants))
            self._opened.notify_all()
        for question in self._unheard.values():  # what comes of it is not opened
            self._owe(question.extents)
            question.extents = []

    def _finish(self) -> None:
        """End, wait until what no load reads is closed, and say so: nobody may look any more after this."""
        with self._lock:
            self._end()
        self._aside.join()
        with self._client_lock, self._lock:
            self._follow()
            self._tell_closed(at_once=True)


def _mapped(fd: int, memory: int, max_blocks: int) -> _Side:
    """Raises ProtocolError."""
    try:
        mapping = Memory.map(fd, writable=False)
        table = ReplicaTable.attach(mapping.view(), memory)
    except (LayoutError, ValueError) as error:
        raise checks.fault(f"replicas mapped: {error}") from None
    if table.max_blocks != max_blocks:
        raise checks.fault(
            f"replicas mapped: a table of {table.max_blocks} blocks for an index of {max_blocks}"
        )
    return _Side(memory, table)
