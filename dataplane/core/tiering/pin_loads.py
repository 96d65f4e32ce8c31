"""Loads of pins: blocks of guaranteed and permanent pins that only tiers hold are loaded into memory.

A round examines all such pins every few seconds, and begins with pins that changed. The missing blocks of a pin are
found in parts, in chain order up to the first gap that is not allowed, and loaded in small requests, one at a time,
while no engine waits for a load. Only blocks that fit in the pin budgets are loaded, so a loaded block is guaranteed,
and a round does not load again what the pool evicts. A pin whose load fails is tried again later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dataplane.core.blocks.slabs import slot_bytes
from dataplane.core.pool.pins import Pin, PinBundle
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.loads import Loads
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.stored_blocks import BlockName

ROUND_S = 5.0
"""Seconds from the end of a round to the next one."""
MAX_STEP_KEYS = 1024
"""Maximum number of keys that one step looks up, and of pins that it examines."""
MAX_PART_KEYS = 256
MAX_PART_BYTES = 32 << 20
"""Maximum bytes of one request, unless a block is larger. A request of an engine waits for no more than this."""
LOAD_DEADLINE_S = 60.0
HANG_S = 10.0
"""Seconds after its deadline at which a load that has not ended is not waited for any more."""
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
"""Seconds until a pin whose load failed is tried again; doubled with each failure."""
NO_BUDGET = "budget"
FAILED = "failed"
DETACHED = "detached"


class MissingBlock(NamedTuple):
    """A block of a pin that a tier holds and memory does not."""

    space: int
    position: int
    """Position of its key in the chain."""
    charge: int
    """Bytes that it takes in memory."""


class PinLoads:
    """Loads the missing blocks of guaranteed and permanent pins from tiers."""

    def __init__(self, catalog: Catalog, loads: Loads) -> None:
        self._catalog, self._loads, self._pool = catalog, loads, catalog.pool
        self._changed: dict[PinBundle, None] = {}
        self._work: Iterator[None] | None = None
        self._next_at = self._now = 0.0
        self._looked_at = 0
        """Keys and pins that this step has looked at."""
        self._retries: dict[PinBundle, tuple[float, float]] = {}
        """By bundle whose load failed: when to try again, and the seconds to wait after the next failure."""

    def changed(self, pins: Iterable[Pin]) -> None:
        """Examine these pins next."""
        for pin in pins:
            if pin.bundle is not None and pin.spec.strength != "soft":
                self._changed[pin.bundle] = None

    def step(self, now: float) -> None:
        """Do the next part of the work."""
        self._now, self._looked_at = now, 0
        if self._work is None and (self._changed or now >= self._next_at):
            self._work = self._round()
        if self._work is not None and next(self._work, self) is self:
            self._work, self._next_at = None, now + ROUND_S

    def _round(self) -> Iterator[None]:
        bundles = list(self._pool.pins.bundles())
        self._retries = {bundle: self._retries[bundle] for bundle in bundles if bundle in self._retries}
        for bundle in bundles:
            while self._changed:
                first = next(iter(self._changed))
                del self._changed[first]
                yield from self._complete(first)
                yield from self._pause(1)
            yield from self._complete(bundle)
            yield from self._pause(1)

    def _pause(self, looked_at: int) -> Iterator[None]:
        """Count keys or pins that were looked at, and end the step if they are too many."""
        self._looked_at += looked_at
        if self._looked_at >= MAX_STEP_KEYS:
            yield

    def _complete(self, bundle: PinBundle) -> Iterator[None]:
        """Load the missing blocks of a bundle, in steps. The bundle may end between steps."""
        if not self._wants(bundle):
            in_tier = self._blocks_in_tiers(bundle)
            bundle.only_in_tiers, bundle.not_loaded = in_tier, DETACHED if in_tier else ""
            return
        due, wait_s = self._retries.get(bundle, (0.0, FIRST_RETRY_S))
        missing: list[MissingBlock] = []
        for space in list(self._pool.spaces.of_model(bundle.model)):
            yield from self._find(bundle, space, missing)
        bundle.only_in_tiers = len(missing)
        if self._now < due:
            return
        bundle.not_loaded = ""
        at = 0
        while at < len(missing) and bundle.pins:
            part = self._part(bundle, missing, at)
            if not part:
                bundle.not_loaded = NO_BUDGET
                return
            while not self._loads.idle:
                yield
            yield from self._load(bundle, part)
            still_missing = sum(self._is_missing(bundle, block) for block in part)
            bundle.only_in_tiers = max(0, bundle.only_in_tiers - len(part) + still_missing)
            if still_missing:
                bundle.not_loaded = FAILED
                self._retries[bundle] = self._now + wait_s, min(2 * wait_s, LONGEST_RETRY_S)
                return
            at += len(part)
        self._retries.pop(bundle, None)

    def _wants(self, bundle: PinBundle) -> bool:
        """Return whether tiers may hold blocks of a bundle that should be in memory."""
        if bundle.strength == "soft" or not bundle.pins:
            return False
        spaces = len(self._pool.spaces.of_model(bundle.model))
        return bundle.resident < spaces * len(bundle.keys) and bool(
            bundle.tiers or any(tier.shared and tier.serves for tier in self._catalog.tiers)
        )

    def _blocks_in_tiers(self, bundle: PinBundle) -> int:
        """Return the number of blocks in the tier that holds most of them, if no engine has attached a space of the
        model. Tiers cannot be loaded into memory before."""
        if bundle.strength == "soft" or not bundle.pins or self._pool.spaces.of_model(bundle.model):
            return 0
        return max((in_tier.blocks for in_tier in bundle.tiers.values()), default=0)

    def _find(self, bundle: PinBundle, space: int, missing: list[MissingBlock]) -> Iterator[None]:
        """Append the blocks of a chain that only tiers hold, up to the first block that is neither in memory nor in
        tiers if the space allows no gaps."""
        catalog = self._catalog
        identity, declared = catalog.identity(space), self._pool.spaces.by_number.get(space)
        if identity is None or declared is None:
            return
        for at in range(0, len(bundle.keys), MAX_PART_KEYS):
            keys = bundle.keys[at : at + MAX_PART_KEYS]
            blocks = self._pool.table.find(pack_keys(keys), space)
            names = [BlockName(identity, key) for key, block in zip(keys, blocks, strict=True) if block is None]
            unknown = (name for name in names if catalog.source(name) is None)
            catalog.existence.query(unknown, self._loads.client)
            while bundle.pins and any(map(catalog.existence.is_queried, names)):
                yield
            for position, (key, block) in enumerate(zip(keys, blocks, strict=True), at):
                if block is not None:
                    continue
                source = catalog.source(BlockName(identity, key), bundle.tenant)
                if source is None:
                    if declared.allows_gaps:
                        continue
                    return
                missing.append(MissingBlock(space, position, slot_bytes(source.nbytes, declared.block_bytes)))
            yield from self._pause(len(keys))
            if space not in self._pool.spaces.by_number:
                return

    def _part(self, bundle: PinBundle, missing: list[MissingBlock], at: int) -> list[MissingBlock]:
        """Return the next blocks of one space to load together; empty if the budgets have no room for the next
        block."""
        tenant = self._pool.tenants.by_salt.get(bundle.tenant)
        free_bytes = self._pool.pins.room_bytes(tenant, permanent=bundle.strength == "permanent")
        part: list[MissingBlock] = []
        total = 0
        for block in missing[at : at + MAX_PART_KEYS]:
            total += block.charge
            if total > free_bytes or block.space != missing[at].space or (part and total > MAX_PART_BYTES):
                break
            part.append(block)
        return part

    def _load(self, bundle: PinBundle, part: list[MissingBlock]) -> Iterator[None]:
        """Ask for blocks of one space, and wait until no more arrive."""
        loads, space = self._loads, part[0].space
        if space not in self._pool.spaces.by_number:
            return
        # The key before the first block tells what the block continues.
        positions = range(max(0, part[0].position - 1), part[-1].position + 1)
        keys = b"".join(bundle.keys[position] for position in positions)
        deadline = self._now + LOAD_DEADLINE_S
        request = loads.request(loads.client, space, keys, deadline, bundle.tenant)
        while request is not None and loads.under_way(request):
            if self._now >= deadline + HANG_S:  # a call of a tier hangs; the pins of other tiers go on
                return
            yield

    def _is_missing(self, bundle: PinBundle, block: MissingBlock) -> bool:
        return self._pool.table.find(pack_keys([bundle.keys[block.position]]), block.space)[0] is None
