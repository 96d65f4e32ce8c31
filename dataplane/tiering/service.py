"""The tiers of a node, of its settings and of records: opened, changed and closed while the node serves.

Nothing here waits: a tier is opened and closed on a thread, and its contents are added in slices on the loop. A tier
that cannot be opened is tried again, at the intervals of the circuit breaker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence, Set
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
import structlog

from dataplane.base import allowed_secrets
from dataplane.core.node import Node
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.core.tiering.tier_state import TierState
from dataplane.core.tiering.tiering import Tiering
from dataplane.io.loop import Loop
from dataplane.io.peers import started_at
from dataplane.memory.memory import NodeMemory
from dataplane.memory.shared_file import SharedFile
from dataplane.observe.trace import BatchSpans
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import VERSION, Attach
from dataplane.protocol.events import TierLost, TierRecovered
from dataplane.protocol.spaces import TIER_GATEWAY, TIER_MOVER
from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.stored_blocks import writer_number
from dataplane.protocol.tier_directory import MAX_TIERS, TierDirectory, buckets_for, directory_bytes
from dataplane.protocol.tiers import TierSpec
from dataplane.tiering.background import Background
from dataplane.tiering.breaker import FIRST_WAIT_S, LONGEST_WAIT_S
from dataplane.tiering.known_spaces import KnownSpaces
from dataplane.tiering.listing import TierListing
from dataplane.tiering.mover import Mover
from dataplane.tiering.opening import OpenedTier, open_and_read
from dataplane.tiering.tier_run import TierRun
from dataplane.tiering.tombstones import TombstoneFile
from dataplane.tiering.wake import Wake
from dataplane.tiers.registry import TierContext, is_shared, tier_faults_of
from dataplane.tiers.tier import TierError

STEP_S = 0.1
START_WAIT_S = 5.0
"""Longest time that the start waits for tiers. Tiers that take longer are added while the node serves."""
log = structlog.stdlib.get_logger()


class NodeTier:
    """One tier that the node should use."""

    def __init__(self, spec: TierSpec, *, from_settings: bool) -> None:
        self.spec = spec
        self.from_settings = from_settings
        self.number: int | None = None
        """Its bit in the directory, from the first step of an attempt to open it on."""
        self.opening = self.closed = False
        self.missed: list[Tombstone] = []
        """While it is being opened: invalidations since its contents were read."""
        self.run: TierRun | None = None
        self.listing: TierListing | None = None
        """Listing of what the node wrote to a shared tier before; None before it is open, and for other tiers."""
        self.reason = ""
        """Why the last attempt to open it failed; empty if none did."""
        self.lost = False
        """Whether `tier.lost` was published because the tier cannot be opened."""
        self._wait_s = FIRST_WAIT_S
        self._next_at = 0.0

    def failed(self, reason: str, now: float) -> None:
        """Note a failed attempt, and when the next one is due."""
        self.opening, self.number = False, None
        self.reason, self._next_at = reason, now + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)

    def succeeded(self) -> None:
        """Note an attempt that succeeded."""
        self.opening, self.missed = False, []
        self.reason, self._wait_s = "", FIRST_WAIT_S

    def wants_to_open(self, now: float) -> bool:
        """Return whether an attempt to open it is due."""
        return self.run is None and not self.opening and now >= self._next_at


class TierService:
    """Opens, changes and closes the tiers of a node. All methods run on the thread of the data plane."""

    def __init__(
        self,
        loop: Loop,
        node: Node,
        memory: NodeMemory,
        clock: Callable[[], float],
        state: Path,
        cluster: str,
        of_settings: Sequence[TierSpec],
        listed_blocks: int,
        secrets: Sequence[str] = (),
    ) -> None:
        """`state` is the folder for tombstones, `cluster` the name of the cluster. The directory has room for
        `listed_blocks` blocks. Records may name the `secrets` of `allowed_secrets`."""
        self._secrets = secrets
        buckets = buckets_for(listed_blocks)
        self.directory_file = SharedFile.create("larder-tiers", directory_bytes(buckets))
        """Memory of the tier directory, which engines map read-only."""
        directory = TierDirectory.make(memoryview(self.directory_file.map()), buckets)
        self._loop, self._node, self._memory, self._clock = loop, node, memory, clock
        self._cluster_name = cluster
        self._cluster = sha256(b"larder.cluster.1" + cluster.encode()).digest()[:16]
        self._background = Background(loop)
        self._tombstones = TombstoneFile(state, partial(self._background.run, "larder-tombstones"), self._stores_in_use)
        self._tiers = {spec.name: NodeTier(spec, from_settings=True) for spec in of_settings}
        self._leaving: list[NodeTier] = []
        """Tiers that are being closed."""
        self._wake = Wake(loop, BatchSpans(clock))
        self._catalog = Catalog(
            node.pool,
            directory,
            KnownSpaces(state, partial(self._background.run, "larder-spaces")),
            self._add_tombstone,
            self._tombstones.when_written,
            self._wake.set,
            writer_number(node.options.name),
        )
        self._mover: Mover | None = None
        """None as long as this node never had a tier."""
        if self._tiers or self._tombstones.knows_tiers:
            self._attached_mover()
        loop.every(STEP_S, self.step)

    # ---- records

    @property
    def names_of_settings(self) -> Set[str]:
        """Names of the tiers that the settings declare."""
        return frozenset(name for name, tier in self._tiers.items() if tier.from_settings)

    def check(self, spec: TierSpec) -> Sequence[tuple[str, str]]:
        """Return the fields that the tier's type does not accept, and why."""
        return [*tier_faults_of(spec), *allowed_secrets.faults(spec.parameters, self._secrets)]

    def apply(self, specs: Sequence[TierSpec], now: float) -> None:
        """Use the tiers of these records, and stop using tiers of other records."""
        specs_by_name = {spec.name: spec for spec in specs}
        for name, tier in list(self._tiers.items()):
            if not tier.from_settings and name not in specs_by_name:
                self._close(tier)
                del self._tiers[name]
        for name, spec in specs_by_name.items():
            existing = self._tiers.get(name)
            if existing is None:
                self._tiers[name] = NodeTier(spec, from_settings=False)
            elif _store_of(existing.spec) != _store_of(spec):
                self._reopen(existing, spec)
            elif existing.spec != spec:
                self._change(existing, spec)
        self.step()

    def _change(self, tier: NodeTier, spec: TierSpec) -> None:
        """Apply changes for which a tier need not be opened again."""
        resized = spec.budget_bytes != tier.spec.budget_bytes
        if tier.run is None:
            if resized:
                self._reopen(tier, spec)
            tier.spec = spec
            return
        tier.spec = tier.run.state.spec = spec
        self._catalog.sort()
        if resized:
            budget_bytes = spec.budget_bytes
            tier.run.worker.submit("copy", lambda opened: opened.resize(budget_bytes), partial(self._resized, tier))

    def _resized(self, tier: NodeTier, result: bool | TierError) -> None:
        if not tier.closed and result is not True:
            self._reopen(tier, tier.spec)
            self.step()

    def _reopen(self, tier: NodeTier, spec: TierSpec) -> None:
        self._close(tier)
        self._tiers[spec.name] = NodeTier(spec, from_settings=tier.from_settings)

    # ---- opening

    def step(self) -> None:
        """Begin to open the tiers for which an attempt is due."""
        now = time.monotonic()
        for tier in self._tiers.values():
            if tier.wants_to_open(now):
                self._open(tier, now)
            elif tier.listing is not None:
                tier.listing.step(now)

    def wait_opened(self) -> None:
        """Wait a bounded time until the tiers that are not shared are open, or could not be opened. Call it once,
        before the loop runs."""

        def settled() -> bool:
            return not any(tier.opening and not is_shared(tier.spec.type) for tier in self._tiers.values())

        self._background.wait(settled, START_WAIT_S)

    def _open(self, tier: NodeTier, now: float) -> None:
        used_numbers = {other.number for other in (*self._tiers.values(), *self._leaving)}
        number = next((number for number in range(MAX_TIERS) if number not in used_numbers), None)
        if number is None:
            tier.failed("other tiers are still being closed", now)
            return
        try:
            mover = self._attached_mover()
        except ProtocolError as error:
            tier.failed(str(error), now)
            return
        tier.opening, tier.number, tier.missed = True, number, []
        context = TierContext(self._cluster, self._node.options.name, tier.spec.budget_bytes, self._cluster_name)
        tombstones = list(self._tombstones.of(_store_of(tier.spec)))
        self._background.run(
            f"larder-tier-{tier.spec.name}-open",
            partial(open_and_read, tier.spec, context, tombstones),
            partial(self._opened, tier, number, mover),
        )

    def _opened(self, tier: NodeTier, number: int, mover: Mover, result: OpenedTier | Exception) -> None:
        if tier.closed:  # it was changed or removed meanwhile
            if not isinstance(result, Exception):
                self._background.run(f"larder-tier-{tier.spec.name}-close", result.tier.close)
            return
        if isinstance(result, Exception):
            if tier.reason != str(result):
                tier.lost = True
                self._node.emit(TierLost(self._clock(), tier.spec.name, f"not opened: {result}"))
            tier.failed(str(result) or type(result).__name__, time.monotonic())
            return
        store = _store_of(tier.spec)
        state = TierState(
            number,
            tier.spec,
            result.tier.stored_size,
            shared=is_shared(tier.spec.type),
            tombstones=partial(self._tombstones.of, store),
        )
        run = tier.run = mover.add(state, result.tier, partial(self._tombstones.clear, store))
        self._background.in_slices(
            self._catalog.restoring(state, result.retained, result.unwanted, self._clock()),
            partial(self._restored, tier, run, mover, result),
        )

    def _restored(self, tier: NodeTier, run: TierRun, mover: Mover, result: OpenedTier) -> None:
        if tier.closed:
            return
        for tombstone in tier.missed:
            run.state.invalidations.start(tombstone)
        if tier.lost:
            tier.lost = False
            self._node.emit(TierRecovered(self._clock(), tier.spec.name))
        tier.succeeded()
        if run.state.shared:
            tier.listing = TierListing(self._background, self._catalog, run, self._clock)
        mover.opened(run)
        log.info(
            "tier.opened",
            tier=tier.spec.name,
            blocks=len(run.state.contents),
            bytes=run.state.contents.used_bytes,
            invalidated=result.dead,
            seconds=round(result.seconds, 3),
        )

    def _stores_in_use(self) -> set[str]:
        return {_store_of(tier.spec) for tier in (*self._tiers.values(), *self._leaving)}

    def _attached_mover(self) -> Mover:
        """Return the mover. Attach its engine, and let the node use tiers, if that is not done yet. Raises
        ProtocolError."""
        if self._mover is None:
            node, pid = self._node, os.getpid()
            message = Attach(0, VERSION, TIER_MOVER, [])
            engine, _ = node.attach(message, pid, self._clock(), started_at(pid), gateway=TIER_GATEWAY)
            tiering = Tiering(self._catalog, node.storing, node.room, engine, node.emit)
            node.use_tiers(tiering)
            self._mover = Mover(self._loop, self._background, self._memory, tiering, self._wake, self._clock, node.emit)
        return self._mover

    def _add_tombstone(self, tombstone: Tombstone) -> None:
        self._tombstones.add(tombstone)
        for tier in self._tiers.values():
            if tier.opening:
                tier.missed.append(tombstone)

    # ---- closing

    def _close(self, tier: NodeTier) -> None:
        """Stop using a tier. Its blocks stay where they are."""
        tier.closed = True  # calls under way, such as that of a changed budget, end without effect
        run = tier.run
        if run is None:
            return
        self._leaving.append(tier)
        unfinished = {"closed", "forgotten"}

        def ended(event: str) -> None:
            unfinished.discard(event)
            if not unfinished:
                self._leaving.remove(tier)
                log.info("tier.closed", tier=run.state.spec.name)
                self.step()

        self._attached_mover().remove(run, partial(ended, "closed"))
        self._background.in_slices(self._catalog.forgetting(run.state), partial(ended, "forgotten"))

    def close(self, now: float) -> None:
        """End all work. Memory that a thread still writes to stays reserved until this process has ended."""
        self._background.close()
        self._tombstones.close()
        if self._mover is not None and self._mover.close():
            self._node.detach_cleanly(self._mover.tiering.loads.client, now)
        self.directory_file.close()

    # ---- state

    def stats(self) -> list[TierStats]:
        """Return the statistics of all tiers: in use, not open, or being closed."""
        leaving = [tier for tier in self._leaving if tier.spec.name not in self._tiers]
        return [self._stats_of(tier) for tier in (*self._tiers.values(), *leaving)]

    def load_seconds(self) -> dict[str, Histogram]:
        """Return the durations of calls that load blocks, by tier."""
        runs = {name: tier.run for name, tier in self._tiers.items()}
        return {name: run.rates.histogram() for name, run in runs.items() if run is not None}

    def _stats_of(self, tier: NodeTier) -> TierStats:
        if tier.run is not None:
            return msgspec.structs.replace(tier.run.stats(), from_settings=tier.from_settings)
        return TierStats(
            name=tier.spec.name,
            type=tier.spec.type,
            budget_bytes=tier.spec.budget_bytes,
            serves=False,
            reason=tier.reason or "it is being opened",
            state="not opened" if tier.reason else "opening",
            from_settings=tier.from_settings,
            shared=is_shared(tier.spec.type),
        )


def _store_of(spec: TierSpec) -> str:
    """Return a name of the store that a tier uses. Tiers of different types or parameters have different stores."""
    parameters = msgspec.json.encode(spec.parameters, order="deterministic")
    return f"{spec.type}:{sha256(parameters).hexdigest()[:32]}"
