"""Events about caches that lost blocks: `cache.started_cold` for a node, `pin.emptied` for a pin on a node.

Both come from a comparison of a node's stats with its earlier ones. An event that a data plane publishes at its start
would be lost, because the subscriber connects only after the data plane has joined. The database records which pins
hold blocks, so that this module notices a loss even if the manager restarts together with its data plane.
"""

import asyncio
from collections.abc import Callable

from app.ingest.fleet import holds_blocks, is_empty, unlisted_tiers
from app.observe.catalogue.records import PinEmptied
from app.observe.events import EventBus
from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventFilters
from app.store.base.database import Database
from app.store.fleet import held_pins
from app.store.records import pins
from app.store.records.pins import StrongPin
from app.store.views import events
from dataplane.protocol.event import name_of
from dataplane.protocol.events import CacheStartedCold
from dataplane.protocol.salts import shown
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.processes import CacheStart


class CacheWatch:
    """Compares stats (`on_stats`, which never waits), and publishes and records the differences (`run`).

    `keeps` returns whether this process records the events of nodes.
    """

    def __init__(self, database: Database, bus: EventBus, keeps: Callable[[], bool]) -> None:
        self._database = database
        self._bus = bus
        self._keeps = keeps
        self._digests: dict[str, dict[str, str]] = {}
        """Digests of the keys of pins that hold blocks, by node and name."""
        self._generations: dict[str, int] = {}
        """Generation of the pins at the last comparison, by node."""
        self._starts: dict[str, float] = {}
        """Time of the last known cold start, by node."""
        self._pending: dict[str, NodeStats] = {}
        """Stats with a difference that `run` has yet to handle, by node."""
        self._unwritten: dict[tuple[str, str], str | None] = {}
        self._wake = asyncio.Event()

    async def load(self) -> None:
        """Read the state that the previous process recorded. Raises StoreUnavailable."""
        async with self._database.read() as session:
            for row in await held_pins.all_pins(session):
                self._digests.setdefault(row.node, {})[row.pin] = row.keys_digest

    def on_stats(self, node: str, stats: NodeStats) -> None:
        """Compare a node's stats with its known state."""
        if self._is_news(node, stats):
            self._pending[node] = stats
            self._wake.set()

    def _is_news(self, node: str, stats: NodeStats) -> bool:
        if stats.start.kind == "cold" and self._starts.get(node) != stats.start.at:
            return True
        applied = stats.observed.get("pins")
        if applied is None:  # a new process that knows no pins yet
            return False
        digests = self._digests.get(node, {})
        if self._generations.get(node) != applied.generation:
            return bool(digests) or any(pin.strength != "soft" for pin in stats.pins)
        listed = not unlisted_tiers(stats)
        return any(
            is_empty(pin) and listed if pin.name in digests else holds_blocks(pin) and pin.strength != "soft"
            for pin in stats.pins
        )

    async def run(self) -> None:
        """Publish and record differences until cancelled. Raises StoreUnavailable; call it again then."""
        while True:
            await self._write()
            if not self._pending:
                await self._wake.wait()
            self._wake.clear()
            for node, stats in list(self._pending.items()):
                await self._settle(node, stats)
                if self._pending.get(node) is stats:
                    del self._pending[node]

    async def _settle(self, node: str, stats: NodeStats) -> None:
        if stats.start.kind == "cold" and self._starts.get(node) != stats.start.at:
            await self._publish_cold(node, stats.start)
        applied = stats.observed.get("pins")
        if applied is None:
            return
        async with self._database.read() as session:
            strong_pins = await pins.strong(session)
        self._generations[node] = applied.generation
        self._compare(node, stats, strong_pins, applied.generation)

    async def _publish_cold(self, node: str, start: CacheStart) -> None:
        """Publish a cold start, unless the previous manager process did."""
        is_published = False
        if self._keeps():
            filters = EventFilters(name_of(CacheStartedCold), node, since=start.at)
            async with self._database.read() as session:
                is_published = bool((await events.page(session, PageRequest(1), filters)).rows)
        self._starts[node] = start.at
        if not is_published:
            event = CacheStartedCold(start.at, start.reason, start.released, start.lost_blocks, start.lost_bytes)
            self._bus.publish(event, node=node, at=start.at)

    def _compare(self, node: str, stats: NodeStats, strong_pins: dict[str, StrongPin], generation: int) -> None:
        """Compare the pins of a node with the records `strong_pins`; skip records that the node has not applied yet."""
        digests = self._digests.setdefault(node, {})
        reported = {pin.name: pin for pin in stats.pins}
        unlisted = bool(unlisted_tiers(stats))
        for name in digests.keys() - reported.keys():
            self._note(node, name, None)
        for name, pin in reported.items():
            record = strong_pins.get(name)
            if record is not None and record.generation > generation:
                continue
            if record is None or pin.expired:
                self._note(node, name, None)
            elif holds_blocks(pin):
                self._note(node, name, record.keys_digest)
            elif not unlisted:  # otherwise, tiers may still turn out to hold them
                lost = digests.get(name) == record.keys_digest
                self._note(node, name, None)
                if lost:
                    event = PinEmptied(name, shown(record.tenant), record.strength, pin.resolved)
                    self._bus.publish(event, node=node)

    def _note(self, node: str, pin: str, digest: str | None) -> None:
        digests = self._digests[node]
        if digests.get(pin) == digest:
            return
        if digest is None:
            del digests[pin]
        else:
            digests[pin] = digest
        self._unwritten[node, pin] = digest

    async def _write(self) -> None:
        """Write all changes to the database. Raise StoreUnavailable; the next call writes the changes that are left."""
        changed = dict(self._unwritten)
        if changed and self._keeps():
            async with self._database.write(light=True) as session:
                await held_pins.save(session, changed)
        for key, digest in changed.items():
            if self._unwritten.get(key) == digest:
                del self._unwritten[key]
