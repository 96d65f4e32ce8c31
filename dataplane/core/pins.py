"""Pins: what an operator wants to keep, present now or yet to come, within budgets.

A pin names keys, a model and a tenant. It holds that tenant's blocks, in every space of that model: the same keys of
another tenant are none of its business, so nobody can pin, or see, what is not theirs. A block under a soft pin is the
last of its account to go. A guaranteed or permanent pin takes the block off the shelf for good, as long as the marked
bytes stay inside the pool's and the tenant's budget: so pins can never make the pool unusable. What does not fit is
kept as under a soft pin and reported as degraded; a permanent pin that finds the budget full takes the place of a
guaranteed one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.core.shelves import Rank
from dataplane.protocol.control import PinSpec, Strength, Tier
from dataplane.protocol.events import PinStats

if TYPE_CHECKING:
    from dataplane.core.blocks import Block
    from dataplane.core.quotas import Tenant


STRENGTHS: tuple[Strength, ...] = ("permanent", "guaranteed", "soft")
"""The strongest first."""


@dataclass(eq=False, slots=True)
class Bundle:
    """Live pins of one model and tenant with the same keys, and so the same blocks: these know it, not each pin."""

    model: str
    tenant: str
    """Its salt."""
    digest: str
    keys: tuple[bytes, ...]
    strength: Strength
    """Of its strongest pin. It never changes: where it must, another bundle takes its place."""
    tier: Tier = "host"
    """`gpu` when one of its pins says so; as with the strength."""
    pins: dict[Pin, None] = field(default_factory=dict)
    resident: int = 0
    bytes: int = 0
    guaranteed: int = 0
    hits: int = 0
    hit_at: float = 0.0
    replicas: int = 0
    """Of all GPUs together."""
    replica_bytes: int = 0
    blocks: dict[Block, None] = field(default_factory=dict)
    """Its resident ones, where replicas are wanted of them."""

    def hit(self, now: float) -> None:
        """One of its blocks was used."""
        self.hits += 1
        self.hit_at = now


@dataclass(eq=False, slots=True)
class Pin:
    """One pin record in force."""

    spec: PinSpec
    keys: tuple[bytes, ...]
    ends_at: float | None
    """The record's end, or where hits had moved it when the pin came to its bundle."""
    expired: bool = False
    bundle: Bundle | None = None
    """While it is live."""
    _hits_before: int = 0
    """Of the bundle, before the pin was in it."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def tenant(self) -> str:
        """The salt of the blocks it holds."""
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
        """Resident blocks that the budgets have no room for."""
        return 0 if self.spec.strength == "soft" else self.resident - self.guaranteed

    @property
    def expires_at(self) -> float | None:
        """The record's end, or where hits have moved it: a hit never brings it nearer."""
        end, bundle = self.ends_at, self.bundle
        if end is None or self.spec.refresh_s is None or bundle is None or bundle.hits == self._hits_before:
            return end
        return max(end, bundle.hit_at + self.spec.refresh_s)

    def prolong(self, end: float) -> None:
        """Let it end no sooner than that."""
        if (before := self.expires_at) is not None:
            self.ends_at = max(before, end)

    def move(self, bundle: Bundle | None) -> None:
        """Into a bundle, or out of any."""
        self.ends_at = self.expires_at
        if self.bundle is not None:
            self.bundle.pins.pop(self, None)
        self.bundle = bundle
        if bundle is not None:
            bundle.pins[self] = None
            self._hits_before = bundle.hits

    def stats(self, spaces: int) -> PinStats:
        replicated = self.bundle if self.spec.tier == "gpu" else None
        return PinStats(
            name=self.name,
            resolved=len(self.keys) * max(1, spaces),
            resident=self.resident,
            bytes=self.bytes,
            guaranteed=self.guaranteed,
            expired=self.expired,
            strength=self.spec.strength,
            degraded=self.degraded,
            expires_at=self.expires_at,
            tier=self.spec.tier,
            replicas=0 if replicated is None else replicated.replicas,
            replica_bytes=0 if replicated is None else replicated.replica_bytes,
        )


@dataclass(slots=True)
class PinTable:
    """Pins by name, and their keys by model and tenant."""

    budget_bytes: int
    pinned_bytes: int = 0
    by_name: dict[str, Pin] = field(default_factory=dict)
    _bundles: dict[tuple[str, str, str], Bundle] = field(default_factory=dict)
    """By model, salt and digest of the keys."""
    _by_key: dict[tuple[str, str], dict[bytes, tuple[Bundle, ...]]] = field(default_factory=dict)
    """By model and salt."""
    permanent: dict[Block, None] = field(default_factory=dict)
    """Blocks that a permanent pin wants, inside the budgets or not."""
    _inside: dict[Tenant, dict[Block, None]] = field(default_factory=dict)
    """Blocks that guaranteed pins hold and that must make way for permanent ones, last marked last."""
    _yielding: dict[Tenant, int] = field(default_factory=dict)
    """Bytes of `_inside`."""
    _yielding_bytes: int = 0
    _waiting: dict[Block, None] = field(default_factory=dict)
    """Resident blocks of live pins that a budget had no room for, first come first."""
    _freed: bool = False
    """Budget was freed since `promote`."""
    _degraded: dict[Bundle, None] = field(default_factory=dict)
    """Bundles with new blocks that wait, since `take_degraded`."""
    _next_due: float = 0.0
    """No pin ends before."""
    replicated: dict[Bundle, None] = field(default_factory=dict)
    """Bundles that want replicas on GPUs, first come first."""
    replicated_changed: bool = False
    """They, or their resident blocks, have changed since whoever makes replicas looked."""

    def add(self, pin: Pin) -> None:
        """Want the pin's keys to stay; the caller re-marks its blocks."""
        self.by_name[pin.name] = pin
        bundle = self._bundles.get((pin.model, pin.tenant, pin.spec.keys_digest))
        if bundle is None:
            bundle = Bundle(
                pin.model, pin.tenant, pin.spec.keys_digest, pin.keys, pin.spec.strength, pin.spec.tier
            )
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
        """Forget the pin's keys; the caller re-marks its blocks."""
        if self.by_name.get(pin.name) is pin:
            del self.by_name[pin.name]
        self._leave(pin)

    def expire(self, pin: Pin) -> None:
        """Its time is over: shown as expired, holding nothing."""
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

    def _settle(self, old: Bundle) -> None:
        """Where its pins want something else now, another bundle takes its place: every block of the old one is found
        to be marked wrongly."""
        strength = strongest({pin.spec.strength for pin in old.pins})
        tier: Tier = "gpu" if any(pin.spec.tier == "gpu" for pin in old.pins) else "host"
        if (strength, tier) == (old.strength, old.tier):
            return
        self._unlist(old)
        bundle = Bundle(old.model, old.tenant, old.digest, old.keys, strength, tier)
        for pin in list(old.pins):
            pin.move(bundle)
        self._list(bundle)

    def _list(self, bundle: Bundle) -> None:
        self._bundles[bundle.model, bundle.tenant, bundle.digest] = bundle
        if bundle.tier == "gpu":
            self.replicated[bundle] = None
            self.replicated_changed = True
        keys, alone = self._by_key.setdefault((bundle.model, bundle.tenant), {}), (bundle,)
        for key in bundle.keys:
            held = keys.get(key)
            keys[key] = alone if held is None else held + alone

    def _unlist(self, bundle: Bundle) -> None:
        del self._bundles[bundle.model, bundle.tenant, bundle.digest]
        if bundle.tier == "gpu":
            del self.replicated[bundle]
            self.replicated_changed = True
        keys = self._by_key[bundle.model, bundle.tenant]
        for key in bundle.keys:
            others = tuple([each for each in keys[key] if each is not bundle])
            if others:
                keys[key] = others
            else:
                del keys[key]
        if not keys:
            del self._by_key[bundle.model, bundle.tenant]

    def of(self, model: str, salt: str, key: bytes) -> tuple[Bundle, ...]:
        """Pins that want a tenant's block to stay in a space of `model`, those of the same keys in one bundle."""
        keys = self._by_key.get((model, salt))
        return keys.get(key, ()) if keys else ()

    # ---- marks on blocks

    def mark(self, block: Block, pins: tuple[Bundle, ...]) -> tuple[Rank | None, Sequence[Block]]:
        """Account a READY block to its pins: its rank now (None: may not go), and blocks that lost their guarantee."""
        block.pins = pins
        for pin in pins:
            pin.resident += 1
            pin.bytes += block.charge
            if pin.tier == "gpu":
                pin.blocks[block] = None
                self.replicated_changed = True
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
        """Take a block out of its pins' account."""
        was = block.guaranteed
        if was:
            self._end_guarantee(block)
        for pin in block.pins:
            pin.resident -= 1
            pin.bytes -= block.charge
            if pin.tier == "gpu":
                pin.blocks.pop(block, None)
                self.replicated_changed = True
        self._waiting.pop(block, None)
        self.permanent.pop(block, None)
        block.pins = ()

    def promote(self) -> list[Block]:
        """Blocks that waited for budget and have it now, permanent ones first; they may not go any more."""
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
        """Another budget of the whole pool."""
        self.budget_bytes = budget_bytes
        self._freed = True

    def demote(self, tenants: Iterable[Tenant]) -> list[Block]:
        """Blocks that must wait because budgets shrank, last marked first. Permanent ones stay: no budget ends them."""
        self._freed = True
        lost = []
        for tenant in tenants:
            while self._over(tenant) and (block := self._last_of(tenant)) is not None:
                self._end_guarantee(block)
                self._wait(block)
                lost.append(block)
        return lost

    def take_degraded(self) -> list[Pin]:
        """Pins that have more blocks beyond the budgets since the last call."""
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
        held = self._inside.get(tenant)
        return next(reversed(held)) if held else None

    def _displace(self, block: Block, displaced: list[Block]) -> bool:
        """Take guarantees of others until a permanent block fits: of its own tenant first, then of anybody. Nobody
        loses one when that would not be enough."""
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
                last = next((each for tenant in self._inside if (each := self._last_of(tenant))), None)
            if last is None:
                return False
            self._end_guarantee(last)
            self._wait(last)
            displaced.append(last)
        return True

    def _wait(self, block: Block) -> None:
        self._waiting[block] = None
        self._degraded.update((pin, None) for pin in block.pins if pin.strength != "soft")

    def _guarantee(self, block: Block) -> None:
        block.guaranteed = True
        self.pinned_bytes += block.charge
        block.tenant.pinned_bytes += block.charge
        if block not in self.permanent:
            self._inside.setdefault(block.tenant, {})[block] = None
            self._yielding[block.tenant] = self._yielding.get(block.tenant, 0) + block.charge
            self._yielding_bytes += block.charge
        for pin in block.pins:
            pin.guaranteed += 1

    def _end_guarantee(self, block: Block) -> None:
        block.guaranteed = False
        self.pinned_bytes -= block.charge
        block.tenant.pinned_bytes -= block.charge
        self._freed = True
        held = self._inside.get(block.tenant)
        if held is not None and block in held:
            del held[block]
            self._yielding[block.tenant] -= block.charge
            self._yielding_bytes -= block.charge
            if not held:
                del self._inside[block.tenant], self._yielding[block.tenant]
        for pin in block.pins:
            pin.guaranteed -= 1

    # ---- time

    def due(self, now: float) -> list[Pin]:
        """Live pins whose time is over."""
        if now < self._next_due:
            return []
        ends = [(pin, pin.expires_at) for pin in self.by_name.values() if not pin.expired]
        self._next_due = min((end for _, end in ends if end is not None and end > now), default=float("inf"))
        return [pin for pin, end in ends if end is not None and end <= now]


def strongest(strengths: Collection[Strength]) -> Strength:
    """The strongest of some strengths."""
    return next(each for each in STRENGTHS if each in strengths)
