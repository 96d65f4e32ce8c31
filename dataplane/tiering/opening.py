"""Opens a tier and reads its contents, on a thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from dataplane.core.tiering.invalidations import Tombstone
from dataplane.core.tiering.tier_state import within_budget
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.protocol.tiers import TierSpec
from dataplane.tiers.registry import TierContext, is_shared, open_tier
from dataplane.tiers.tier import Tier, TierError

BUSY_S = 3.0
"""Seconds for which a previous process that is ending may hold the lock of a directory."""
PROBE_S = 10.0


class OpenedTier(NamedTuple):
    """A tier and its contents."""

    tier: Tier
    retained: list[StoredBlock]
    """Oldest first."""
    dead: int
    """Number of blocks that were invalidated while the tier was not open."""
    unwanted: list[BlockName]
    """Blocks that the tier must delete: the invalidated blocks, and blocks beyond the budget."""
    seconds: float


def open_and_read(spec: TierSpec, context: TierContext, tombstones: Sequence[Tombstone]) -> OpenedTier:
    """Open a tier and read its contents, except those of a shared tier, most of which other nodes wrote.

    Raises ParameterError or TierError.
    """
    began = time.monotonic()
    tier = _open(spec, context)
    try:
        if is_shared(spec.type):
            health = tier.health(time.monotonic() + PROBE_S)
            if not health.ok:
                raise TierError(health.reason or "it does not answer")
            return OpenedTier(tier, [], 0, [], time.monotonic() - began)
        stored = list(tier.blocks())
        dead = {name for tombstone in tombstones for name in tombstone.among(stored)}
        alive = [block for block in stored if block.name not in dead]
        retained, dropped = within_budget(alive, tier.stored_size, spec.budget_bytes)
    except BaseException:
        tier.close()
        raise
    return OpenedTier(tier, retained, len(dead), [*dead, *dropped], time.monotonic() - began)


def _open(spec: TierSpec, context: TierContext) -> Tier:
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return open_tier(spec.type, spec.parameters, context)
        except TierError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)
