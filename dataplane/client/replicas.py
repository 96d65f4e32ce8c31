"""Replicas of leased blocks in a device's memory: where an engine reads them instead of in the pool.

One object for each client and device. The data plane is asked once for its table of replicas, and then for extents
that a load met there and that are not open in this process. Theory: `dataplane.protocol.replicas`; in short, whoever
holds a lease on a block holds its replica, so a load keeps its lease until the copies have ended, and nothing else.

An extent that the data plane gave up is closed when no load reads from it any more, which is said with the next
message. While the connection is lost the pool is read. When the client is attached to another data plane process,
everything is asked for anew, and what the one before had is closed in the same way.

No data plane, one without replicas, or one of an older release: nothing is found, and nothing is asked again while that
lasts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dataplane.client import checks
from dataplane.client.leases import Held
from dataplane.client.link import Link
from dataplane.client.memory import Memory
from dataplane.devices.runtime import Device, DeviceError, Handle, Opened, Runtime
from dataplane.protocol import engine as wire
from dataplane.protocol.codes import Code, code_of
from dataplane.protocol.layout import H_MEMORY, LayoutError
from dataplane.protocol.replicas import MAX_EXTENTS, ReplicaTable

RETRY_S = 10.0
"""What was refused, or ended a connection, is not tried again before."""
PATIENCE_S = 0.005
"""So long a load waits for extents that it met for the first time: as long as some chunks take out of the pool. What
comes later is there for the next load."""
_LASTING = frozenset({Code.UNSUPPORTED, Code.MALFORMED, Code.NOT_ALLOWED})
"""Refusals that hold for an attachment. A data plane that does not know the question says MALFORMED."""

_log = logging.getLogger("larder.client")


class Extent:
    """An open extent. Who reads from it is counted; it is closed when it is of no use and nobody does."""

    __slots__ = ("_opened", "address", "attachment", "gone", "nbytes", "number", "users")

    def __init__(self, number: int, attachment: int, opened: Opened, offset: int, nbytes: int) -> None:
        self.number = number
        self.attachment = attachment
        """Of the client, in which the number counts."""
        self.address = opened.address + offset
        """In this process."""
        self.nbytes = nbytes
        self.users = 0
        self.gone = False
        """It is closed as soon as nobody reads from it."""
        self._opened = opened

    def close(self) -> None:
        """Raises DeviceError."""
        self._opened.close()


@dataclass(frozen=True, slots=True)
class Replica:
    """Where one block is on the device."""

    extent: Extent
    address: int


@dataclass(eq=False, slots=True)
class _Side:
    """What one data plane process said, in one attachment."""

    memory: int
    """Identity of the index that the table goes with."""
    table: ReplicaTable
    changes: int = -1
    grants: dict[int, wire.ReplicaGrant] = field(default_factory=dict)
    """Extents that may be open here, as far as the data plane knows."""
    open: dict[int, Extent] = field(default_factory=dict)
    waiting: dict[int, float] = field(default_factory=dict)
    """Extents that were not granted, or could not be opened, and when they may be tried again."""


@dataclass(frozen=True, slots=True)
class _Answer:
    attachment: int
    said: wire.ReplicasMapped | wire.Refused
    side: _Side | None
    """Where the table was asked for."""
    extents: Sequence[int]
    closed: Sequence[int]


class Replicas:
    """Those of one device, for one client. May be shared by threads and by paged caches; `enter` and `leave` say how
    many there are."""

    def __init__(self, link: Link, client_lock: threading.RLock, runtime: Runtime, device: Device) -> None:
        self._link = link
        self._client_lock = client_lock
        """Taken after `_lock`, where both are."""
        self._runtime = runtime
        self._device = device
        self._lock = threading.RLock()
        self._attachment = 0
        self._attached = False
        self._side: _Side | None = None
        self._asked = 0
        """Number of the request whose answer was not heard yet; one at a time."""
        self._answers: deque[_Answer] = deque()
        """Heard under the client's lock, in whichever thread; taken in under ours."""
        self._closed: list[int] = []
        """What the data plane was not told yet."""
        self._not_before = 0.0
        self._failed = False
        """What the data plane of this attachment said of replicas was wrong."""
        self._told = ""
        self._caches = 0

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
            if not self._caches:
                self._end()
                self._tell_closed()

    def close(self) -> None:
        """The client is about to say goodbye: what no load reads is closed, and nothing is opened any more."""
        with self._lock:
            self._end()
            self._tell_closed()
            self._not_before = float("inf")

    def look(self) -> None:
        """Take in what the data plane said, and close what it gave up. Waits for nothing; cheap when nothing is new."""
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
            if side is None or side.memory != int(held.world.index.header[H_MEMORY]):
                return nowhere
            if not self._attached:
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
            return found

    def done(self, extents: Collection[Extent]) -> None:
        """A load does not read from them any more."""
        with self._lock:
            for extent in extents:
                extent.users -= 1
                if extent.gone and not extent.users:
                    self._close(extent)
            self.look()

    # ---- the data plane

    def _follow(self) -> None:
        """Take in what was answered, notice another data plane, and ask for the table where that is due."""
        with self._client_lock:
            self._link.maintain()
            if self._asked:
                self._link.hear()
            attachment, self._attached = self._link.attachments, self._link.attached
        if attachment != self._attachment:
            self._end()
            self._closed.clear()
            # One that was lost over a question is asked none for a while: the rest of the cache goes on.
            self._not_before = time.monotonic() + RETRY_S if self._asked or self._failed else 0.0
            self._attachment, self._asked, self._failed = attachment, 0, False
        while self._answers:
            self._take(self._answers.popleft())
        due = self._side is None and not self._asked and self._caches
        if due and self._attached and time.monotonic() >= self._not_before:
            self._ask([], table=True)

    def _ask(self, extents: list[int], *, table: bool) -> None:
        """Post a question, if none is under way. What was closed goes along."""
        if self._asked:
            return
        closed = self._closed[:MAX_EXTENTS]
        with self._client_lock:
            world = self._link.world
            if world is None or self._link.attachments != self._attachment:
                return
            identity = int(world.index.header[H_MEMORY]), world.index.max_blocks
            hear = partial(self._hear, self._attachment, identity, extents, closed, table=table)
            uuid = self._device.uuid
            self._asked = self._link.post(
                lambda number: wire.MapReplicas(number, uuid, extents, closed, table), hear
            )
        if self._asked:
            del self._closed[: len(closed)]

    def _hear(
        self,
        attachment: int,
        identity: tuple[int, int],
        extents: Sequence[int],
        closed: Sequence[int],
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
        self._answers.append(_Answer(attachment, answer, side, extents, closed))

    def _take(self, answer: _Answer) -> None:
        if answer.attachment != self._attachment:
            return
        self._asked = 0
        if isinstance(answer.said, wire.Refused):
            code = code_of(answer.said.code)
            lasting = code in _LASTING
            self._not_before = float("inf") if lasting else time.monotonic() + RETRY_S
            self._closed[:0] = answer.closed
            if not lasting:
                self._tell(f"replicas are refused, the pool is read instead: {answer.said.message}")
            return
        if answer.side is not None:
            self._side = answer.side
        side = self._side
        if side is None:
            return
        granted = {grant.extent: grant for grant in answer.said.grants}
        side.grants |= granted
        side.changes = -1  # one of them may have gone since
        # Of another space, or given up meanwhile: asking again would change nothing.
        side.waiting |= {number: float("inf") for number in answer.extents if number not in granted}

    def _distrust(self, fault: str) -> None:
        self._end()
        self._not_before, self._failed = float("inf"), True
        with self._client_lock:
            if self._link.attachments == self._attachment:
                self._link.distrust(fault)

    # ---- extents

    def _ready(self, side: _Side, wanted: list[int]) -> None:
        """Have these extents open, as far as that can be. Those that are not known are asked for, all at once."""
        now = time.monotonic()
        wanted = [each for each in wanted if each not in side.open and side.waiting.get(each, 0.0) <= now]
        if not wanted:
            return
        listed = set(side.table.extents())
        unknown = [each for each in wanted if each in listed and each not in side.grants]
        if unknown and now >= self._not_before:
            self._ask(unknown[:MAX_EXTENTS], table=False)
            if self._asked:
                with self._client_lock:
                    self._link.wait_for(self._asked, PATIENCE_S)
                self._follow()
        if self._side is side:
            for number in wanted:
                if number in side.grants and not self._open(side, side.grants[number]):
                    return

    def _open(self, side: _Side, grant: wire.ReplicaGrant) -> bool:
        """False: the data plane is not to be trusted."""
        handle = Handle(grant.handle, grant.offset, grant.nbytes, self._device.uuid)
        try:
            opened = self._runtime.open(handle)
        except DeviceError as error:
            side.waiting[grant.extent] = time.monotonic() + RETRY_S
            self._tell(f"an extent of replicas could not be opened, the pool is read instead: {error}")
            return True
        extent = Extent(grant.extent, self._attachment, opened, grant.offset, grant.nbytes)
        if grant.offset + grant.nbytes > opened.nbytes:
            self._close_quietly(extent)
            self._distrust(
                f"an extent ends at {grant.offset + grant.nbytes} of an allocation of {opened.nbytes} bytes"
            )
            return False
        side.waiting.pop(grant.extent, None)
        side.open[grant.extent] = extent
        return True

    def _tidy(self, side: _Side) -> None:
        """Let extents go that the table does not list any more."""
        changes = side.table.changes
        if changes == side.changes:
            return
        side.changes = changes  # read before the list: what goes after that is seen next time
        listed = set(side.table.extents())
        for number in [each for each in side.waiting if each not in listed]:
            del side.waiting[number]
        for number in [each for each in side.grants if each not in listed]:
            del side.grants[number]
            extent = side.open.pop(number, None)
            if extent is None:
                self._closed.append(number)
            else:
                self._retire(extent)

    def _retire(self, extent: Extent) -> None:
        extent.gone = True
        if not extent.users:
            self._close(extent)

    def _close(self, extent: Extent) -> None:
        self._close_quietly(extent)
        if extent.attachment == self._attachment:
            self._closed.append(extent.number)

    def _close_quietly(self, extent: Extent) -> None:
        try:
            extent.close()
        except DeviceError as error:
            self._tell(f"an extent of replicas could not be closed: {error}")

    def _tell(self, text: str) -> None:
        """Once, however often it is tried."""
        if text != self._told:
            self._told = text
            _log.warning("larder.gpu %s", text)

    def _tell_closed(self) -> None:
        if self._closed and time.monotonic() >= self._not_before:
            self._ask([], table=False)

    def _end(self) -> None:
        """Nothing of this data plane process is read anew."""
        side, self._side = self._side, None
        if side is not None:
            extents = list(side.open.values())
            side.open.clear()
            for extent in extents:
                self._retire(extent)


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
