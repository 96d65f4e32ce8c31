"""One tier in use."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from dataplane.base.process_figures import LATENCY_BOUNDS_S
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.core.tiering.tier_state import TierState
from dataplane.core.tiering.tiering import Tiering
from dataplane.io.loop import Loop
from dataplane.protocol.events import Event, TierLost, TierRecovered
from dataplane.protocol.misses import source_of_type
from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.tiers import TierPhase, TierStats
from dataplane.protocol.stored_blocks import BlockName, Outcome, StoredBlock
from dataplane.tiering.breaker import Breaker
from dataplane.tiering.encoding import CALL_S
from dataplane.tiering.worker import HANG_S, TierWorker, delete_blocks, look_up_blocks, probe
from dataplane.tiers.tier import TierError

MAX_LOOK_UPS = 2
"""Maximum number of calls under way that ask a shared tier for blocks."""
SYNC_S = 1.0
"""Deadline of a call that syncs deletions; another one goes on."""
SHRINK_S = 0.005
"""Duration of each slice in which blocks are evicted for a smaller budget, and of the pause after it."""
DELETE_AGAIN_S = 1.0
"""Pause of the deletions of a tier after a call that deleted nothing."""
MAX_TENANTS_SHOWN = 50
READING = "its contents are being read"
_DECAY = 0.8
"""Share of the older loads after each load."""
_ASSUMED_BYTES_PER_S = 100e6
"""What is assumed before the first load."""


class Rates:
    """How fast a tier loads, as measured: an exponential average over the last loads, and a histogram of their
    durations.

    Time that loads wait for their turn does not count, because the caller adds what waits; in the average, time in
    which several loads run counts once.
    """

    def __init__(self) -> None:
        self.bytes_per_s = _ASSUMED_BYTES_PER_S
        self._bytes = self._seconds = 0.0
        self._counted_until = 0.0
        self._durations = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._total_s = 0.0

    def histogram(self) -> Histogram:
        """Return the durations of all loads."""
        return Histogram(list(LATENCY_BOUNDS_S), list(self._durations), self._total_s)

    def add(self, nbytes: int, began: float, ended: float) -> None:
        """Add a load of so many bytes that ran from `began` to `ended`, seconds of one clock. A load without bytes,
        which failed, does not change the bandwidth."""
        self._durations[bisect_left(LATENCY_BOUNDS_S, ended - began)] += 1
        self._total_s += ended - began
        if not nbytes:
            return
        busy_s = max(0.0, ended - max(began, self._counted_until))
        self._counted_until = max(self._counted_until, ended)
        self._bytes = _DECAY * self._bytes + nbytes
        self._seconds = _DECAY * self._seconds + busy_s
        self.bytes_per_s = self._bytes / max(self._seconds, 1e-6)


@dataclass(eq=False)
class TierRun:
    """One tier in use: its state and its threads; its look-ups, deletions and probes; and its budget."""

    state: TierState
    worker: TierWorker
    tiering: Tiering
    loop: Loop
    clock: Callable[[], float]
    emit: Callable[[Event], None]
    forget_tombstones: Callable[[], None]
    """Called once the tier has carried out the tombstones of its state."""
    breaker: Breaker = field(default_factory=Breaker)
    rates: Rates = field(default_factory=Rates)
    opened: bool = False
    """Whether its contents are known. Until then, the tier does not serve."""
    copying: int = 0
    """Calls under way that copy to the tier."""
    deleting: bool = False
    delete_at: float = 0.0
    """When the next call that deletes blocks may begin."""
    syncing: bool = False
    """Whether deletions are being synced, or could not be: tombstones then stay until the tier is opened again."""
    shrinking: bool = False
    looking: int = 0
    """Calls under way that ask a shared tier for blocks."""
    listing_fault: str = ""
    """Why the last attempt to list a shared tier failed; empty if none did."""

    @property
    def serves(self) -> bool:
        """Whether blocks are copied to the tier and loaded from it."""
        return self.opened and self.breaker.serves and not self.state.closing

    def begin_service(self) -> None:
        """Let the tier serve, because its contents are known. A tier that was found to fail meanwhile is lost."""
        self.opened = self.state.serves = True
        self._publish_state()

    def step(self, now: float) -> None:
        """Do the periodic work: detect that the tier hangs, probe it, keep its budget, and update the directory."""
        if self.breaker.serves and (hangs := self._hangs()):
            self._failed(hangs, whole=True)
        if self.opened and self.breaker.wants_probe(now):
            self.worker.submit("load", probe, self._probed)
        if not self.shrinking and self.state.listed_blocks is None:
            self._shrink()
        self.publish()

    def _shrink(self) -> None:
        """Bring the tier within its budget, in short slices."""
        until = time.monotonic() + SHRINK_S
        while not self.state.closing and self.tiering.catalog.shrink(self.state, self.clock()):
            if time.monotonic() >= until:
                self.shrinking = True
                self.loop.once(SHRINK_S, self._shrink)
                return
        self.shrinking = False

    def publish(self) -> None:
        """Write the state and the rates of the tier to the directory, for engines."""
        self.tiering.catalog.directory.publish(
            self.state.number,
            waiting_bytes=self.state.loading_bytes + self.tiering.loads.waiting_bytes(),
            bytes_per_s=int(self.rates.bytes_per_s),
            latency_us=0,
            serves=self.serves,
            shared=self.state.shared,
            source=source_of_type(self.state.spec.type),
        )

    # ---- look-ups and deletions

    def look_up(self) -> None:
        """Begin to ask a shared tier for the blocks that are to be looked up."""
        while self.looking < MAX_LOOK_UPS and (names := self.tiering.catalog.existence.next_names(self.state)):
            self.looking += 1
            self.worker.submit("look", partial(look_up_blocks, names), partial(self._looked_up, names))

    def _looked_up(self, names: Sequence[BlockName], result: list[StoredBlock | None] | TierError) -> None:
        self.looking -= 1
        stored = [None] * len(names) if isinstance(result, TierError) else result
        self.tiering.looked_up(self.state, names, stored, self.clock())
        self.judge(result, ())

    def delete(self, now: float) -> None:
        """Begin to delete the blocks that are to be deleted, or to sync what was deleted."""
        if self.deleting or now < self.delete_at:
            return
        names = self.tiering.catalog.take_deletions(self.state)
        if names:
            self.deleting = True
            self.worker.submit("copy", partial(delete_blocks, names), partial(self._deleted, names))
        elif not self.state.deletions_left:
            self._sync()

    def _deleted(self, names: list[BlockName], result: list[Outcome] | TierError) -> None:
        self.deleting = False
        outcomes = result if not isinstance(result, TierError) else [Outcome.FAILED] * len(names)
        if self.state.closing:
            return
        not_deleted = [name for name, outcome in zip(names, outcomes, strict=True) if outcome is not Outcome.OK]
        if len(not_deleted) == len(names):
            self.delete_at = self.clock() + DELETE_AGAIN_S
        self.tiering.catalog.deleted(self.state, not_deleted)
        # A block that cannot be deleted, again and again, does not take the tier out of service.
        self.judge(result, [outcome for outcome in outcomes if outcome is not Outcome.FAILED])
        self.tiering.catalog.wake()

    def _sync(self) -> None:
        """Sync what was deleted, and then forget the tombstones."""
        if not self.state.shared and not self.syncing and (tombstones := list(self.state.tombstones())):
            self.syncing = True
            self.worker.submit(
                "look", lambda tier: tier.sync(time.monotonic() + SYNC_S), partial(self._synced, tombstones)
            )

    def _synced(self, tombstones: list[Tombstone], result: Outcome | TierError) -> None:
        self.syncing = result not in (Outcome.OK, Outcome.LATE)
        if result is Outcome.OK and not self.state.deletions_left and self.state.tombstones() == tombstones:
            self.forget_tombstones()

    # ---- failures

    def judge(self, result: object, outcomes: Sequence[Outcome]) -> None:
        """Note the end of a call for the circuit breaker. Without outcomes, only a TierError says something."""
        if isinstance(result, TierError):
            self._failed(str(result), whole=True)
        elif outcomes and all(outcome in (Outcome.FAILED, Outcome.LATE) for outcome in outcomes):
            self._failed(f"blocks are {outcomes[0].value}", whole=False)
        elif outcomes:
            self.breaker.succeeded()

    def _hangs(self) -> str:
        """Return why the tier counts as hanging; empty if no call takes long after its deadline."""
        seconds = self.worker.hangs_s()
        return f"a call has not returned for {seconds:.0f} s" if seconds > CALL_S + HANG_S else ""

    def _failed(self, reason: str, *, whole: bool) -> None:
        self.breaker.failed(reason, self.clock(), whole=whole)
        self._publish_state()

    def _probed(self, result: str | TierError) -> None:
        self.breaker.probed(str(result) or self._hangs(), self.clock())
        self._publish_state()
        self.tiering.catalog.wake()

    def _publish_state(self) -> None:
        served, self.state.serves = self.state.serves, self.serves
        if served and not self.serves and not self.state.closing:
            self.emit(TierLost(self.clock(), self.state.spec.name, self.breaker.reason))
        elif not served and self.serves:
            self.emit(TierRecovered(self.clock(), self.state.spec.name))

    # ---- statistics

    def stats(self) -> TierStats:
        """Return the statistics of the tier."""
        state, contents, counters = self.state, self.state.contents, self.state.counters
        usage = self.worker.tier.usage()
        waiting_blocks, waiting_bytes = self.tiering.table.waiting(state)
        return msgspec.structs.replace(
            counters,
            refused=dict(counters.refused),
            lost=dict(counters.lost),
            not_compressed=dict(counters.not_compressed),
            budget_bytes=state.spec.budget_bytes,
            serves=self.serves,
            reason=self.breaker.reason if self.opened else READING,
            state=self._phase(),
            shared=state.shared,
            listed_blocks=state.listed_blocks,
            listing_fault=self.listing_fault,
            logical_bytes=contents.logical_bytes,
            encodings=dict[str, int](contents.encodings.items()),
            out_of_service=self.breaker.opened,
            blocks=len(contents),
            stored_bytes=contents.used_bytes,
            evicted_blocks=contents.evicted_blocks,
            draining_blocks=self.tiering.drains.left(state),
            waiting_blocks=waiting_blocks,
            waiting_bytes=waiting_bytes,
            spilling_bytes=state.spilling_bytes,
            loading_bytes=state.loading_bytes,
            load_bytes_per_s=self.rates.bytes_per_s,
            tenants=[tenant.stats() for tenant in contents.largest_tenants(MAX_TENANTS_SHOWN)],
            foreign_objects=usage.foreign_objects,
            first_foreign=usage.first_foreign,
        )

    def _phase(self) -> TierPhase:
        if self.state.closing:
            return "closing"
        if not self.opened:
            return "opening"
        return "in service" if self.breaker.serves else "out of service"
