"""Which blocks have a replica on a device: a plan, made anew whenever pins, engines or room have changed.

Permanent pins come before guaranteed ones, and these before soft ones. Among guaranteed ones the first that came stays;
among soft ones the last that was used, each tenant first up to its weight's share of what is left. Within a pin the
head of the chain comes first, for without it the rest is of no use. A tenant's pin budget holds on every device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from dataplane.core.extents import Room, shape_of
from dataplane.core.pins import STRENGTHS, Bundle

if TYPE_CHECKING:
    from dataplane.core.blocks import Block
    from dataplane.core.quotas import Tenant

COUNTED = 8192
STAY_S = 10.0
"""Soft pins that came are not pushed out by other soft ones for so long: copies are to be read more often than made."""


class Plan:
    """What fits, in the order of its importance."""

    def __init__(
        self,
        bundles: Iterable[Bundle],
        spaces: Collection[int],
        room: Room,
        came: dict[Bundle, float],
        now: float,
    ) -> None:
        """`spaces` are those that engines on the device read; `came` says since when pins have replicas there."""
        self.blocks: dict[Block, None] = {}
        self.wanted = 0
        """Blocks that would be there with endless room."""
        self.bundles: dict[Bundle, None] = {}
        """Those that have a block in the plan."""
        self.too_large: set[Block] = set()
        """Blocks whose extent would be larger than the pool."""
        self.looked = 0
        """Pins and blocks that were looked at: what the plan cost."""
        self._spaces = spaces
        self._room = room
        self._used: dict[Tenant, int] = {}
        by_strength: dict[str, list[Bundle]] = {strength: [] for strength in STRENGTHS}
        for bundle in bundles:
            by_strength[bundle.strength].append(bundle)
        soft = by_strength.pop("soft")
        soft.sort(key=lambda bundle: (now - came.get(bundle, -STAY_S) >= STAY_S, -bundle.hit_at))
        for some in by_strength.values():
            self._fill(some, {})
        self._fill(soft, self._shares(soft))
        self._fill(soft, {})
        self.wanted = self._wanted((*by_strength["permanent"], *by_strength["guaranteed"], *soft))

    @property
    def short(self) -> bool:
        """Something had no room: who is used may push others out."""
        return self.wanted > len(self.blocks)

    def _wanted(self, bundles: Sequence[Bundle]) -> int:
        """Blocks that are asked for, each once; of very many, each as often as pins ask for it."""
        once = dict.fromkeys(self._spaces, 1)
        total = sum([bundle.readable(once) for bundle in bundles])
        if total == len(self.blocks) or total > COUNTED:
            return total
        return len({block for bundle in bundles for block in bundle.blocks if block.space in self._spaces})

    def _shares(self, bundles: Iterable[Bundle]) -> dict[Tenant, int]:
        """Bytes that each tenant's soft pins may take before others have had their turn."""
        tenants = {next(iter(bundle.blocks)).tenant for bundle in bundles if bundle.blocks}
        weights = {tenant: 1.0 if tenant.spec is None else tenant.spec.weight for tenant in tenants}
        total = sum(weights.values())
        left = self._room.free_bytes
        return {tenant: int(left * weight / total) for tenant, weight in weights.items()}

    def _fill(self, bundles: Iterable[Bundle], shares: dict[Tenant, int]) -> None:
        taken: dict[Tenant, int] = {}
        room, blocks = self._room, self.blocks
        for bundle in bundles:
            if room.full:
                return
            chain = self._chain(bundle)
            self.looked += 1 + len(chain)
            if not chain:
                continue
            tenant = chain[0].tenant  # a pin has blocks of one tenant
            used, share = self._used.get(tenant, 0), taken.get(tenant, 0)
            budget = tenant.pin_budget_bytes
            left = None if budget is None else budget - used
            if shares:
                fair = shares[tenant] - share
                left = fair if left is None else min(left, fair)
            filled = 0
            for block in chain:
                shape = shape_of(block)
                if left is not None and filled + shape.slot_bytes > left:
                    break
                if room.take(shape):
                    filled += shape.slot_bytes
                    blocks[block] = None
                elif room.never(shape):
                    self.too_large.add(block)
            if filled:
                self._used[tenant], taken[tenant] = used + filled, share + filled
                self.bundles[bundle] = None

    def _chain(self, bundle: Bundle) -> list[Block]:
        """Its blocks that may have a replica here and have none in the plan yet, the head of the chain first."""
        spaces, there = self._spaces, self.blocks
        blocks = [block for block in bundle.blocks if block.space in spaces and block not in there]
        if len(blocks) > 1:
            position = {key: at for at, key in enumerate(bundle.keys)}
            blocks.sort(key=lambda block: position[block.key])
        return blocks
