"""Pins: blocks that an operator wants to keep, present now or stored later, within budgets.

A pin names keys, a model and a tenant. It holds that tenant's blocks in every space of that model. It does not affect
blocks of other tenants with the same keys, so a tenant cannot pin or see blocks of another one. Blocks under a soft pin
are evicted last in their account. A guaranteed or permanent pin removes the block from its eviction queue, as long as
the guaranteed bytes stay within the budgets of the pool and of the tenant, so pins can never make the pool unusable.
Blocks that do not fit are kept as under a soft pin and reported as degraded. A permanent pin that finds the budget full
displaces guaranteed ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from dataplane.core.blocks.blocks import Block
from dataplane.core.tenants.eviction_queues import Rank
from dataplane.core.tenants.tenant import Tenant
from dataplane.protocol.control.records import PinSpec, Strength, Tier
from dataplane.protocol.stats.pins import PinInTier, PinStats

STRENGTHS: tuple[Strength, ...] = ("permanent", "guaranteed", "soft")
"""Strengths of pins, strongest first."""


@dataclass(eq=False, slots=True)
class PinBundle:
    """Live pins of one model and tenant with the same keys and therefore the same blocks. The pin table notes
    the bundles of a block instead of the single pins."""

    model: str
    tenant: str
    """Salt of the tenant."""
    digest: str
    keys: tuple[bytes, ...]
    strength: Strength
    """Strength of the strongest pin. It never changes; when it would, another bundle replaces this one."""
    tier: Tier = "host"
    """`gpu` if any of the pins has that tier. It never changes either."""
    pins: dict[Pin, None] = field(default_factory=dict)
    resident: int = 0
    bytes: int = 0
    guaranteed: int = 0
    hits: int = 0
    hit_at: float = 0.0
    gpu_copies: int = 0
    """Number of GPU copies on all GPUs together."""
    gpu_copy_bytes: int = 0
    blocks: dict[Block, None] = field(default_factory=dict)
    """Resident blocks, if the bundle wants GPU copies; otherwise empty."""
    gpu_copies_wanted: int = 0
    """Number of GPU copies that the bundle would have with unlimited room."""
    tiers: dict[str, PinInTier] = field(default_factory=dict)
    """What tiers behind memory hold, by name of the tier; `core.tiering` keeps it."""
    only_in_tiers: int = 0
    """Number of blocks that tiers hold and memory lacked when `core.tiering.pin_loads` last looked."""
    not_loaded: str = ""
    """Why these are not being loaded: `budget`, `failed`, or empty if they are."""
    _in_space: dict[int, int] = field(default_factory=dict)
    """Number of `blocks` in each space."""

    def readable(self, times: Mapping[int, int]) -> int:
        """Return the number of `blocks`, each multiplied by the factor of its space in `times`; 0 for other spaces."""
        return sum([count * times[space] for space, count in self._in_space.items() if space in times])

    def keep(self, block: Block) -> None:
        """Add a resident block that should have GPU copies."""
        self.blocks[block] = None
        self._in_space[block.space] = self._in_space.get(block.space, 0) + 1

    def drop(self, block: Block) -> None:
        """Remove a block that `keep` added."""
        del self.blocks[block]
        self._in_space[block.space] -= 1
        if not self._in_space[block.space]:
            del self._in_space[block.space]


@dataclass(eq=False, slots=True)
class Pin:
    """One pin record."""

    spec: PinSpec
    keys: tuple[bytes, ...]
    ends_at: float | None
    """Unix seconds of the record's end, or the later end that hits had moved it to when the pin joined its bundle."""
    expired: bool = False
    bundle: PinBundle | None = None
    """The bundle of a live pin; None when it is not live."""
    _hits_before: int = 0
    """Hits of the bundle before the pin joined it."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def tenant(self) -> str:
        """Salt of the blocks that the pin holds."""
        return self.spec.tenant

    @property
    def resident(self) -> int:
        return 0 if self.bundle is None else self.bundle.resident

    @property
    def bytes(self) -> int:
        return 0 if self.bundle is None else self.bundle.bytes

    @property
    def guaranteed(self) -> int:
        return 0 if self.bundle is None else self.bundle.guaranteed

    @property
    def degraded(self) -> int:
        """Number of resident blocks for which the budgets have no room."""
        return 0 if self.spec.strength == "soft" else self.resident - self.guaranteed

    @property
    def expires_at(self) -> float | None:
        """Unix seconds of the record's end, or of the end that hits have moved it to. A hit never makes it earlier."""
        end, bundle = self.ends_at, self.bundle
        if end is None or self.spec.refresh_s is None or bundle is None or bundle.hits == self._hits_before:
            return end
        return max(end, bundle.hit_at + self.spec.refresh_s)

    def prolong(self, end: float) -> None:
        """Let the pin end no earlier than `end`."""
        if (before := self.expires_at) is not None:
            self.ends_at = max(before, end)

    def move(self, bundle: PinBundle | None) -> None:
        """Move the pin into a bundle, or out of its bundle with None."""
        self.ends_at = self.expires_at
        if self.bundle is not None:
            self.bundle.pins.pop(self, None)
        self.bundle = bundle
        if bundle is not None:
            bundle.pins[self] = None
            self._hits_before = bundle.hits

    def stats(self, spaces: int) -> PinStats:
        with_gpu_copies = self.bundle if self.spec.tier == "gpu" else None
        covered = len(self.keys) * max(1, spaces)
        keeps = self.bundle if self.spec.strength != "soft" else None
        only_in_tiers = 0 if keeps is None else min(keeps.only_in_tiers, max(0, covered - keeps.resident))
        return PinStats(
            name=self.name,
            resolved=covered,
            resident=self.resident,
            bytes=self.bytes,
            guaranteed=self.guaranteed,
            expired=self.expired,
            strength=self.spec.strength,
            degraded=self.degraded,
            expires_at=self.expires_at,
            tier=self.spec.tier,
            gpu_copies=0 if with_gpu_copies is None else with_gpu_copies.gpu_copies,
            gpu_copy_bytes=0 if with_gpu_copies is None else with_gpu_copies.gpu_copy_bytes,
            gpu_copies_wanted=0 if with_gpu_copies is None else with_gpu_copies.gpu_copies_wanted,
            tiers={} if self.bundle is None else {name: copy(in_tier) for name, in_tier in self.bundle.tiers.items()},
            only_in_tiers=only_in_tiers,
            not_loaded=keeps.not_loaded if keeps is not None and only_in_tiers else "",
        )


@dataclass(slots=True)
class PinTable:
    """Pins by name, and their keys by model and tenant."""

    budget_bytes: int
    pinned_bytes: int = 0
    by_name: dict[str, Pin] = field(default_factory=dict)
    _bundles: dict[tuple[str, str, str], PinBundle] = field(default_factory=dict)
    """Bundles by model, salt and digest of the keys."""
    _by_key: dict[tuple[str, str], dict[bytes, tuple[PinBundle, ...]]] = field(default_factory=dict)
    """Bundles of each key, by model and salt."""
    marked: dict[Block, tuple[PinBundle, ...]] = field(default_factory=dict)
    """Bundles of each READY block that a pin holds."""
    guaranteed: set[Block] = field(default_factory=set)
    """Blocks that are within the pin budgets and therefore in no eviction queue."""
    permanent: dict[Block, None] = field(default_factory=dict)
    """Blocks under a permanent pin, within the budgets or not."""
    _inside: dict[Tenant, dict[Block, None]] = field(default_factory=dict)
    """Guaranteed blocks without a permanent pin, which permanent pins may displace, in the order of marking."""
    _yielding: dict[Tenant, int] = field(default_factory=dict)
    """Bytes of the blocks in `_inside` for each tenant."""
    _yielding_bytes: int = 0
    _waiting: dict[Block, None] = field(default_factory=dict)
    """Resident blocks of live pins for which a budget had no room, in order of arrival."""
    _freed: bool = False
    """Whether budget was freed since the last `promote`."""
    _degraded: dict[PinBundle, None] = field(default_factory=dict)
    """Bundles with blocks that began to wait since the last `take_degraded`."""
    _next_due: float = 0.0
    """Unix seconds before which no pin ends."""
    with_gpu_copies: dict[PinBundle, None] = field(default_factory=dict)
    """Bundles that want GPU copies, in order of arrival."""
    gpu_copies_changed: bool = False
    """Whether these bundles or their resident blocks have changed since the GPU copies were last planned."""

    def add(self, pin: Pin) -> None:
        """Add a pin; the caller re-marks its blocks."""
        self.by_name[pin.name] = pin
        bundle = self._bundles.get((pin.model, pin.tenant, pin.spec.keys_digest))
        if bundle is None:
            bundle = PinBundle(pin.model, pin.tenant, pin.spec.keys_digest, pin.keys, pin.spec.strength, pin.spec.tier)
            self._list(bundle)
        pin.keys = bundle.keys
        pin.move(bundle)
        stronger = STRENGTHS.index(pin.spec.strength) < STRENGTHS.index(bundle.strength)
        if stronger or (pin.spec.tier, bundle.tier) == ("gpu", "host"):
            self._settle(bundle)
        elif bundle.resident > bundle.guaranteed:
            self._degraded[bundle] = None
        self._next_due = 0.0

    def remove(self, pin: Pin) -> None:
        """Remove a pin; the caller re-marks its blocks."""
        if self.by_name.get(pin.name) is pin:
            del self.by_name[pin.name]
        self._leave(pin)

    def expire(self, pin: Pin) -> None:
        """Mark a pin as expired; it stays listed but holds no blocks."""
        pin.expired = True
        self._leave(pin)

    def _leave(self, pin: Pin) -> None:
        bundle = pin.bundle
        if bundle is None:
            return
        pin.move(None)
        if not bundle.pins:
            self._unlist(bundle)
        elif pin.spec.strength == bundle.strength or pin.spec.tier == "gpu":
            self._settle(bundle)

    def _settle(self, old: PinBundle) -> None:
        """Replace a bundle if the strength or tier of its pins changed. Blocks of the old bundle then have outdated
        pins, so `repin` marks them again."""
        strength = strongest({pin.spec.strength for pin in old.pins})
        tier: Tier = "gpu" if any(pin.spec.tier == "gpu" for pin in old.pins) else "host"
        if (strength, tier) == (old.strength, old.tier):
            return
        self._unlist(old)
        bundle = PinBundle(old.model, old.tenant, old.digest, old.keys, strength, tier)
        for pin in list(old.pins):
            pin.move(bundle)
        self._list(bundle)

    def _list(self, bundle: PinBundle) -> None:
        self._bundles[bundle.model, bundle.tenant, bundle.digest] = bundle
        if bundle.tier == "gpu":
            self.with_gpu_copies[bundle] = None
            self.gpu_copies_changed = True
        keys, alone = self._by_key.setdefault((bundle.model, bundle.tenant), {}), (bundle,)
        for key in bundle.keys:
            bundles = keys.get(key)
            keys[key] = alone if bundles is None else bundles + alone

    def _unlist(self, bundle: PinBundle) -> None:
        del self._bundles[bundle.model, bundle.tenant, bundle.digest]
        if bundle.tier == "gpu":
            del self.with_gpu_copies[bundle]
            self.gpu_copies_changed = True
        keys = self._by_key[bundle.model, bundle.tenant]
        for key in bundle.keys:
            other_bundles = tuple([other for other in keys[key] if other is not bundle])
            if other_bundles:
                keys[key] = other_bundles
            else:
                del keys[key]
        if not keys:
            del self._by_key[bundle.model, bundle.tenant]

    def of(self, model: str, salt: str, key: bytes) -> tuple[PinBundle, ...]:
        """Return the bundles of pins that hold a tenant's block in a space of `model`."""
        keys = self._by_key.get((model, salt))
        return keys.get(key, ()) if keys else ()

    def bundles(self) -> Collection[PinBundle]:
        """Return the bundles of all live pins."""
        return self._bundles.values()

    def room_bytes(self, tenant: Tenant | None, *, permanent: bool) -> int:
        """Return how many more bytes of a tenant the budgets can guarantee. `tenant` is None for one without blocks.
        For a permanent pin, bytes that it may displace count as free."""
        free_bytes = self.budget_bytes - self.pinned_bytes + (self._yielding_bytes if permanent else 0)
        if tenant is not None and tenant.pin_budget_bytes is not None:
            yielding = self._yielding.get(tenant, 0) if permanent else 0
            free_bytes = min(free_bytes, tenant.pin_budget_bytes - tenant.pinned_bytes + yielding)
        return free_bytes

    # ---- marks on blocks

    def mark(self, block: Block, pins: tuple[PinBundle, ...]) -> tuple[Rank | None, Sequence[Block]]:
        """Account a READY block to its pins.

        Return its new rank, None if it may not be evicted, and the blocks that lost their guarantee to it.
        """
        self.marked[block] = pins
        for pin in pins:
            pin.resident += 1
            pin.bytes += block.charge
            if pin.tier == "gpu":
                pin.keep(block)
                self.gpu_copies_changed = True
        rank = strongest({pin.strength for pin in pins})
        if rank == "soft":
            return Rank.SOFT, ()
        if rank == "permanent":
            self.permanent[block] = None
        displaced: list[Block] = []
        if not self._fits(block) and not (block in self.permanent and self._displace(block, displaced)):
            self._wait(block)
            return Rank.SOFT, displaced
        self._guarantee(block)
        return None, displaced

    def unmark(self, block: Block) -> None:
        """Remove a block from the accounts of its pins."""
        if block in self.guaranteed:
            self._end_guarantee(block)
        for pin in self.marked.pop(block, ()):
            pin.resident -= 1
            pin.bytes -= block.charge
            if pin.tier == "gpu":
                pin.drop(block)
                self.gpu_copies_changed = True
        self._waiting.pop(block, None)
        self.permanent.pop(block, None)

    def promote(self) -> list[Block]:
        """Guarantee waiting blocks that now fit the budgets, permanent ones first, and return them. They may no longer
        be evicted."""
        if not self._freed:
            return []
        self._freed = False
        promoted = []
        for block in sorted(self._waiting, key=self.permanent.__contains__, reverse=True):
            if self._fits(block):
                del self._waiting[block]
                self._guarantee(block)
                promoted.append(block)
        return promoted

    def rebudget(self, budget_bytes: int) -> None:
        """Set the budget of the whole pool."""
        self.budget_bytes = budget_bytes
        self._freed = True

    def demote(self, tenants: Iterable[Tenant]) -> list[Block]:
        """End guarantees that exceed shrunk budgets, last marked first, and return the blocks, which now wait.

        Guarantees of permanent pins stay whatever the budget.
        """
        self._freed = True
        lost = []
        for tenant in tenants:
            while self._over(tenant) and (block := self._last_of(tenant)) is not None:
                self._end_guarantee(block)
                self._wait(block)
                lost.append(block)
        return lost

    def take_degraded(self) -> list[Pin]:
        """Return the pins that got more blocks beyond the budgets since the last call."""
        degraded = [pin for bundle in self._degraded for pin in bundle.pins if pin.degraded > 0]
        self._degraded.clear()
        return degraded

    def _fits(self, block: Block) -> bool:
        budget = block.tenant.pin_budget_bytes
        return self.pinned_bytes + block.charge <= self.budget_bytes and (
            budget is None or block.tenant.pinned_bytes + block.charge <= budget
        )

    def _over(self, tenant: Tenant) -> bool:
        budget = tenant.pin_budget_bytes
        return self.pinned_bytes > self.budget_bytes or (budget is not None and tenant.pinned_bytes > budget)

    def _last_of(self, tenant: Tenant) -> Block | None:
        inside = self._inside.get(tenant)
        return next(reversed(inside)) if inside else None

    def _displace(self, block: Block, displaced: list[Block]) -> bool:
        """End guarantees of other blocks until a permanent block fits, first in its own tenant, then in any tenant.
        Append the displaced blocks to `displaced`. End none and return False if that would not be enough."""
        budget = block.tenant.pin_budget_bytes
        tenant = block.tenant
        if self.pinned_bytes - self._yielding_bytes + block.charge > self.budget_bytes or (
            budget is not None and tenant.pinned_bytes - self._yielding.get(tenant, 0) + block.charge > budget
        ):
            return False
        while not self._fits(block):
            own = budget is not None and block.tenant.pinned_bytes + block.charge > budget
            last = self._last_of(block.tenant)
            if last is None and not own:
                last = next((candidate for tenant in self._inside if (candidate := self._last_of(tenant))), None)
            if last is None:
                return False
            self._end_guarantee(last)
            self._wait(last)
            displaced.append(last)
        return True

    def _wait(self, block: Block) -> None:
        self._waiting[block] = None
        self._degraded.update((pin, None) for pin in self.marked[block] if pin.strength != "soft")

    def _guarantee(self, block: Block) -> None:
        self.guaranteed.add(block)
        self.pinned_bytes += block.charge
        block.tenant.pinned_bytes += block.charge
        if block not in self.permanent:
            self._inside.setdefault(block.tenant, {})[block] = None
            self._yielding[block.tenant] = self._yielding.get(block.tenant, 0) + block.charge
            self._yielding_bytes += block.charge
        for pin in self.marked[block]:
            pin.guaranteed += 1

    def _end_guarantee(self, block: Block) -> None:
        self.guaranteed.discard(block)
        self.pinned_bytes -= block.charge
        block.tenant.pinned_bytes -= block.charge
        self._freed = True
        inside = self._inside.get(block.tenant)
        if inside is not None and block in inside:
            del inside[block]
            self._yielding[block.tenant] -= block.charge
            self._yielding_bytes -= block.charge
            if not inside:
                del self._inside[block.tenant], self._yielding[block.tenant]
        for pin in self.marked[block]:
            pin.guaranteed -= 1

    # ---- time

    def due(self, now: float) -> list[Pin]:
        """Return the live pins that have reached their end."""
        if now < self._next_due:
            return []
        expiries = [(pin, pin.expires_at) for pin in self.by_name.values() if not pin.expired]
        self._next_due = min((end for _, end in expiries if end is not None and end > now), default=float("inf"))
        return [pin for pin, end in expiries if end is not None and end <= now]


def strongest(strengths: Collection[Strength]) -> Strength:
    """Return the strongest of some strengths."""
    return next(strength for strength in STRENGTHS if strength in strengths)
