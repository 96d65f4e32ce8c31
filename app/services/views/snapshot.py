"""The complete state in one response, and waiting for its next change (a blocking query, as in Consul).

The index is the Unix time in milliseconds at which this process noticed the newest change, adjusted to grow with every
change. So an index from before a restart is older than any index after it and is answered at once, and an index from
another manager that shares the database is valid here. No manager can have returned an index in the future, so it is
answered at once, too.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from app.ingest.fleet import Fleet
from app.observe.events import EventBus
from app.schemas.views.snapshot import RECORDS, NodeRecord
from app.services.records.progress import RecordProgress
from app.store.base.database import Database
from app.store.records import bulk, generations
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, SnapshotType
from dataplane.protocol.salts import shown

MAX_WAIT_S = 300.0
LOOK_S = 1.0
"""Seconds in which commits of other managers are noticed, even without a notification."""
JITTER = 1 / 16
"""Largest extension of a wait, as a fraction of it, so that concurrent clients do not all return at the same time."""


class Snapshots:
    """`after` returns states; records of a type are encoded once for each of its generations, for all callers."""

    def __init__(self, database: Database, fleet: Fleet, progress: RecordProgress, bus: EventBus) -> None:
        self._database = database
        self._fleet = fleet
        self._progress = progress
        self._bus = bus
        self._records: dict[SnapshotType, tuple[int, bytes]] = {}
        """Generation and JSON of each type."""
        self._parts: tuple[tuple[int, bytes], ...] = ()
        self._last_look: tuple[int, float] = (-1, 0.0)
        self._body = b""
        self._index = 0
        self._lock = asyncio.Lock()

    async def after(self, index: int, wait_s: float) -> tuple[int, bytes]:
        """Return index and JSON of the state that follows `index`; of the current state if the time is over or the
        server stops. Raises StoreUnavailable."""
        deadline = time.monotonic() + wait_s * (1 + JITTER * random.random())
        while True:
            count = self._fleet.change_signal.count
            await self._look()
            remaining_s = deadline - time.monotonic()
            if not self._index <= index <= _milliseconds() or remaining_s <= 0 or self._bus.closed:
                return self._index, self._body
            await self._fleet.change_signal.wait(min(remaining_s, LOOK_S), since=count)

    async def _look(self) -> None:
        """Rebuild the body if the state has changed; at most once per notification of the change signal, for all
        waiting callers."""
        async with self._lock:
            count, now = self._fleet.change_signal.count, time.monotonic()
            if self._last_look[0] == count and now - self._last_look[1] < LOOK_S / 2:
                return
            await self._read()
            nodes = msgspec.json.encode([self._node(name) for name in sorted(self._fleet.nodes)])
            parts = (*(self._records[kind] for kind in SNAPSHOT_TYPES), (0, nodes))
            if parts != self._parts:
                self._parts = parts
                self._index = max(self._index + 1, _milliseconds())
                named = zip((*SNAPSHOT_TYPES, "nodes"), parts, strict=True)
                sections = b",".join(b'"%s":%s' % (name.encode(), part) for name, (_, part) in named)
                self._body = b'{"index":%d,%s}' % (self._index, sections)
            self._last_look = (count, now)

    async def _read(self) -> None:
        """Read the records of types with a new generation."""
        async with self._database.read() as session:
            heads = await generations.heads(session)
            changed = [kind for kind in SNAPSHOT_TYPES if self._records.get(kind, (-1, b""))[0] != heads[kind]]
            rows_by_type = {kind: await bulk.columns(session, kind, _column_names(kind)) for kind in changed}
        for kind, rows in rows_by_type.items():
            # In a thread: encoding ten thousand records would block the event loop for too long.
            self._records[kind] = (heads[kind], await asyncio.to_thread(_encoded, kind, heads[kind], rows))

    def _node(self, name: str) -> NodeRecord:
        node = self._fleet.nodes[name]
        observed = {kind: state.generation for kind, state in sorted(node.observed.items())}
        return NodeRecord(name, self._progress.state(node).value, node.epoch, observed)


def _encoded(kind: SnapshotType, generation: int, rows: Sequence[sa.Row[tuple[Any, ...]]]) -> bytes:
    items = [RECORDS[kind](*row) for row in rows]
    if "tenant" in RECORDS[kind].__struct_fields__:
        items = [msgspec.structs.replace(item, tenant=shown(item.tenant)) for item in items]
    packed = msgspec.json.encode(items)
    digest = sha256(packed).hexdigest()
    return b'{"generation":%d,"digest":"%s","items":%s}' % (generation, digest.encode(), packed)


def _column_names(kind: SnapshotType) -> Sequence[str]:
    return cast(Sequence[str], RECORDS[kind].__struct_fields__)


def _milliseconds() -> int:
    return int(time.time() * 1000)
