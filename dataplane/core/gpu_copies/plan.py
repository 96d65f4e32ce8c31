"""The plan of which blocks have a GPU copy on a device. It is remade whenever pins, engines or room have changed.

Permanent pins come before guaranteed pins, and guaranteed pins before soft pins. Among guaranteed pins, older ones come
first. Among soft pins, the most recently used come first, and each tenant first gets its share, by weight, of the
remaining room. Within a pin, the head of the chain comes first, because the rest is useless without it. A tenant's pin
budget applies to every device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from dataplane.core.gpu_copies.extents import ExtentBudget, shape_of
from dataplane.core.pool.pins import STRENGTHS, PinBundle

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block
    from dataplane.core.tenants.tenant import Tenant

COUNTED = 8192
STAY_S = 10.0
"""Time for which other soft pins do not displace a soft pin with new copies, so that copies are read more often than
made."""


class CopyPlan:
    """The blocks that fit on a device, most important first."""

    def __init__(
        self,
        bundles: Iterable[PinBundle],
        spaces: Collection[int],
        extent_budget: ExtentBudget,
        came: dict[PinBundle, float],
        now: float,
    ) -> None:
        """Make the plan.

        `spaces` are the spaces that engines on the device read; `came` holds the Unix seconds since which pins have GPU
        copies there.
        """
        self.blocks: dict[Block, None] = {}
        self.wanted = 0
        """Number of blocks that would be in the plan if room were unlimited."""
        self.bundles: dict[PinBundle, None] = {}
        """Pin bundles that have a block in the plan."""
        self.too_large: set[Block] = set()
        """Blocks whose extent would be larger than the pool."""
        self.looked = 0
        """Number of pins and blocks that were looked at, a measure of the plan's cost."""
        self._spaces = spaces
        self._extent_budget = extent_budget
        self._used: dict[Tenant, int] = {}
        by_strength: dict[str, list[PinBundle]] = {strength: [] for strength in STRENGTHS}
        for bundle in bundles:
            by_strength[bundle.strength].append(bundle)
        soft = by_strength.pop("soft")
        soft.sort(key=lambda bundle: (now - came.get(bundle, -STAY_S) >= STAY_S, -bundle.hit_at))
        for of_strength in by_strength.values():
            self._fill(of_strength, {})
        self._fill(soft, self._shares(soft))
        self._fill(soft, {})
        self.wanted = self._count_wanted((*by_strength["permanent"], *by_strength["guaranteed"], *soft))

    @property
    def short(self) -> bool:
        """Return whether some wanted blocks had no room, so that a newly used pin may displace others."""
        return self.wanted > len(self.blocks)

    def _count_wanted(self, bundles: Sequence[PinBundle]) -> int:
        """Return the number of wanted blocks, each counted once; above COUNTED, once for each pin that wants it."""
        once = dict.fromkeys(self._spaces, 1)
        total = sum([bundle.readable(once) for bundle in bundles])
        if total == len(self.blocks) or total > COUNTED:
            return total
        return len({block for bundle in bundles for block in bundle.blocks if block.space in self._spaces})

    def _shares(self, bundles: Iterable[PinBundle]) -> dict[Tenant, int]:
        """Return the bytes that each tenant's soft pins may take before other tenants have had their share."""
        tenants = {next(iter(bundle.blocks)).tenant for bundle in bundles if bundle.blocks}
        weights = {tenant: 1.0 if tenant.spec is None else tenant.spec.weight for tenant in tenants}
        total = sum(weights.values())
        free_bytes = self._extent_budget.free_bytes
        return {tenant: int(free_bytes * weight / total) for tenant, weight in weights.items()}

    def _fill(self, bundles: Iterable[PinBundle], shares: dict[Tenant, int]) -> None:
        taken_bytes: dict[Tenant, int] = {}
        extent_budget, blocks = self._extent_budget, self.blocks
        for bundle in bundles:
            if extent_budget.full:
                return
            chain = self._chain(bundle)
            self.looked += 1 + len(chain)
            if not chain:
                continue
            tenant = chain[0].tenant  # a pin has blocks of one tenant
            used, share = self._used.get(tenant, 0), taken_bytes.get(tenant, 0)
            budget = tenant.pin_budget_bytes
            left_bytes = None if budget is None else budget - used
            if shares:
                fair = shares[tenant] - share
                left_bytes = fair if left_bytes is None else min(left_bytes, fair)
            filled = 0
            for block in chain:
                shape = shape_of(block)
                if left_bytes is not None and filled + shape.slot_bytes > left_bytes:
                    break
                if extent_budget.take(shape):
                    filled += shape.slot_bytes
                    blocks[block] = None
                elif extent_budget.never(shape):
                    self.too_large.add(block)
            if filled:
                self._used[tenant], taken_bytes[tenant] = used + filled, share + filled
                self.bundles[bundle] = None

    def _chain(self, bundle: PinBundle) -> list[Block]:
        """Return the bundle's blocks in readable spaces that are not yet in the plan, head of the chain first."""
        spaces, planned = self._spaces, self.blocks
        blocks = [block for block in bundle.blocks if block.space in spaces and block not in planned]
        if len(blocks) > 1:
            position = {key: at for at, key in enumerate(bundle.keys)}
            blocks.sort(key=lambda block: position[block.key])
        return blocks
