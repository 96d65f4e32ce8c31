"""The contents of one tier: its blocks by name, charged to tenants, in the order in which the tier evicts them.

Tenants with a quota in this tier have accounts of their own, and all others share one, as in the pool. A tier has no
leases: a block may be evicted while it is loaded, and the load then finds nothing.

A tier may hold millions of blocks, so no method walks over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain, islice
from typing import Any, Literal

from dataplane.core.eviction.victim_iterator import VictimIterator
from dataplane.core.tenants.accounts import Account, effective_floors
from dataplane.core.tenants.eviction_queues import Rank
from dataplane.core.tenants.tenant import Tenant
from dataplane.core.tiering.tier_order import TierEntry, TierOrder, TierShare, TierTenant
from dataplane.core.tiering.tier_pins import TierPins
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.protocol.tiers import Compress

NoRoom = Literal["budget", "limit"]
"""Why a tier has no room for a block."""
SMALLEST_STEP_BYTES, STEP_SHIFT = 4096, 16
"""After a tier was full, each step tries this many more bytes, or this part of its budget if that is more."""
LISTED_AT = 0.0
"""Time of last use of the blocks that a listing finds: before all others."""
MAX_LOOKED_AT = 4096
"""Maximum number of blocks that one search for room looks at."""

SOON_ABOVE = 0.9
"""Fraction of a budget or a limit above which blocks count as soon evicted."""
SOON_OF_TENANT, MAX_NEAR_LIMIT = 64, 16
"""Number of blocks of a tenant near its limit that count as soon evicted, and the most tenants at a time."""


class TierContents:
    """The blocks of one tier. `used_bytes` includes room that was taken for blocks that are being written."""

    def __init__(self, budget_bytes: int, name: str) -> None:
        self.budget_bytes = budget_bytes
        """The most bytes that the tier may hold now."""
        self.target_bytes = budget_bytes
        """The budget of the record, which `budget_bytes` approaches as blocks are evicted. Floors and pins share it."""
        self.full_at_bytes: int | None = None
        """What the tier held when it last had no room for a block, raised a little by every `grow`; None: not known."""
        self.used_bytes = 0
        self.evicted_blocks = 0
        self.uses = 0
        """Number of uses of blocks, which change the order of eviction."""
        self.logical_bytes = 0
        """Bytes of the blocks in memory, before compression."""
        self.encodings: dict[Compress, int] = {}
        """Number of blocks by encoding."""
        self.entries: dict[BlockName, TierEntry] = {}
        self.tenants: dict[str, TierTenant] = {}
        self.spaces: dict[bytes, int] = {}
        """Number of blocks of each space."""
        self.numbered: list[TierEntry | None] = []
        """The blocks by their numbers, which are given again after a block is removed: a walk over the numbers meets
        every block that stays."""
        self._free_numbers: list[int] = []
        self._order = TierOrder(self.numbered)
        self.pins = TierPins(name, self._order)
        self._over: dict[str, None] = {}
        """Salts of tenants that may hold more than a limit that was lowered."""
        self._near_limit: dict[str, None] = {}
        """Salts of tenants that stored blocks near their limit since the last `soon_evicted`."""

    def __len__(self) -> int:
        return len(self.entries)

    # ---- blocks

    def add(self, stored: StoredBlock, charge: int, now: float, encoding: Compress = "none") -> TierEntry:
        """Add a block that the tier holds from now on, or replace the one of the same name. Return it."""
        self.remove(stored.name)
        tenant = self._tenant(stored.tenant)
        if not self._free_numbers:
            self._free_numbers.append(len(self.numbered))
            self.numbered.append(None)
        number = self._free_numbers.pop()
        mark = int.from_bytes(stored.name.key[:8], "little") ^ int.from_bytes(stored.name.space[:8], "little")
        entry = TierEntry(number, charge, mark, stored, tenant, encoding=encoding)
        self.entries[stored.name] = self.numbered[number] = entry
        self.spaces[stored.name.space] = self.spaces.get(stored.name.space, 0) + 1
        self._charge(tenant, charge, 1)
        limit = tenant.account.limit_bytes
        if limit is not None and tenant.bytes + tenant.pending_bytes > limit:
            self._over[tenant.salt] = None  # the limit was lowered while the tier was closed
        self._count(entry, 1)
        self._order.insert(entry, now)
        return entry

    def remove(self, name: BlockName) -> TierEntry | None:
        """Remove a block, and return it; None if the tier does not hold it."""
        entry = self.entries.pop(name, None)
        if entry is not None:
            self.pins.unmark(entry)
            self._order.move(entry, None, 0.0)
            self.numbered[entry.number] = None
            self._free_numbers.append(entry.number)
            self.spaces[name.space] -= 1
            if not self.spaces[name.space]:
                del self.spaces[name.space]
            self._charge(entry.tenant, -entry.charge, -1)
            self._count(entry, -1)
            self._forget_unused(entry.tenant)
        return entry

    def touch(self, name: BlockName, now: float) -> None:
        """Record a use of a block, if the tier holds it."""
        entry = self.entries.get(name)
        if entry is not None:
            self.uses += 1
            self._order.touch(entry, now)

    def put_first(self, stored: StoredBlock) -> None:
        """Make a listed block the first one of its tenant to be evicted, unless it was used or replaced meanwhile."""
        entry = self.entries.get(stored.name)
        if entry is not None and entry.stored is stored and entry.used_at == LISTED_AT:
            self._order.put_first(entry)

    # ---- room

    def take(self, charge: int, salt: str) -> None:
        """Take room for a block of a tenant that is being written. Give it back with a negative number."""
        tenant = self._tenant(salt)
        tenant.pending_bytes += charge
        self.used_bytes += charge
        if charge > 0 and len(self._near_limit) < MAX_NEAR_LIMIT and self._is_near(tenant):
            self._near_limit[salt] = None
        self._forget_unused(tenant)

    @property
    def room_bytes(self) -> int:
        """The most bytes that the tier is expected to have room for."""
        return self.budget_bytes if self.full_at_bytes is None else min(self.budget_bytes, self.full_at_bytes)

    def was_full(self) -> None:
        """Note that the tier had no room for a block, although its budget has: room is rounded to pieces of segments,
        and the device may be full. From now on, blocks are evicted before the tier refuses the next one."""
        self.full_at_bytes = self.used_bytes

    def grow(self) -> None:
        """Try a little more room again."""
        if self.full_at_bytes is not None:
            self.full_at_bytes += max(SMALLEST_STEP_BYTES, self.budget_bytes >> STEP_SHIFT)
            if self.full_at_bytes >= self.budget_bytes:
                self.full_at_bytes = None

    def victims(
        self, charge: int, salt: str, now: float, excluded: Callable[[TierEntry], bool], *, at_least: int = 0
    ) -> list[TierEntry] | NoRoom:
        """Return blocks to evict so that the tenant can store `charge` more bytes, or why there is no room.

        Their charges add up to at least `at_least` bytes, even if the budget has room.

        `excluded` blocks are passed over, and count as just used, unless the tenant's limit demands them. The caller
        removes the blocks.
        """
        tenant = self.tenants.get(salt)
        account: Account = self._order.common if tenant is None else tenant.account
        limit = account.limit_bytes
        own_excess = 0
        if limit is not None and tenant is not None:
            own_excess = max(0, account.bytes + tenant.pending_bytes + charge - limit)
            if charge > limit or (own_excess and tenant.share is not None and tenant.share.rejects):
                return "limit"
        excess = max(at_least, self.used_bytes + charge - self.room_bytes)
        if not own_excess and not excess:
            return []
        chosen: list[TierEntry] = []
        passed: list[TierEntry] = []
        freed = freed_own = 0
        search = self._search(account, now)
        iterator: Any = self._own_first(search, account) if own_excess else search.candidates()
        with closing(iterator) as candidates:
            for looked_at, entry in enumerate(candidates):
                if (freed >= excess and freed_own >= own_excess) or looked_at == MAX_LOOKED_AT:
                    break
                if excluded(entry):
                    passed.append(entry)
                    continue
                if search.take(entry):
                    chosen.append(entry)
                    freed += entry.charge
                    freed_own += entry.charge if entry.tenant.account is account else 0
        for entry in passed:
            if freed_own < own_excess and entry.tenant.account is account and search.take(entry):
                chosen.append(entry)
                freed += entry.charge
                freed_own += entry.charge
            else:
                self._order.refresh(entry, now)
        if freed_own < own_excess:
            return "limit"
        return chosen if freed >= excess else "budget"

    def _search(self, asking: Account | None, now: float) -> Any:
        """Return a `VictimIterator` over the blocks of the tier. It is written for blocks of the pool."""
        numbered: Any = self.numbered
        return VictimIterator(self._order, numbered, asking, now)

    def _own_first(self, search: VictimIterator, account: Account) -> Iterator[TierEntry]:
        """Yield the blocks of an account that is at its limit, then those of others."""
        own_numbers: set[int] = set()
        for rank in Rank:
            for number in account.queue.victims(rank, search.now):
                own_numbers.add(number)
                yield self._at(number)
        candidates: Any = search.candidates()
        with closing(candidates):
            yield from (entry for entry in candidates if entry.number not in own_numbers)

    def beyond_limits(self, now: float, most: int) -> list[TierEntry]:
        """Return at most `most` blocks of tenants that exceed a lowered limit. The caller removes them, and calls
        again until none is left. Guaranteed blocks follow when `TierPins.step` has ended their guarantee."""
        chosen: list[TierEntry] = []
        for salt in list(self._over):
            tenant = self.tenants.get(salt)
            limit = None if tenant is None else tenant.account.limit_bytes
            if tenant is None or limit is None or tenant.bytes + tenant.pending_bytes <= limit:
                del self._over[salt]
                continue
            excess = tenant.bytes + tenant.pending_bytes - limit
            queue = tenant.account.queue
            for number in chain.from_iterable(queue.victims(rank, now) for rank in Rank):
                if excess <= 0 or len(chosen) >= most:
                    break
                entry = self._at(number)
                excess -= entry.charge
                chosen.append(entry)
        return chosen

    def soon_evicted(self, now: float, most: int) -> list[TierEntry]:
        """Return about `most` blocks that are evicted next if the tier is nearly full, and some of tenants that are
        near their limits and have stored blocks lately."""
        soon: dict[int, TierEntry] = {}
        near, self._near_limit = self._near_limit, {}
        for salt in near:
            tenant = self.tenants.get(salt)
            if tenant is not None and self._is_near(tenant):
                queue = tenant.account.queue
                numbers = chain.from_iterable(queue.victims(rank, now) for rank in Rank)
                soon.update((number, self._at(number)) for number in islice(numbers, SOON_OF_TENANT))
        if self.used_bytes >= SOON_ABOVE * self.room_bytes:
            search = self._search(None, now)
            with closing(search.candidates()) as candidates:
                for entry in islice(candidates, most):
                    if search.take(entry):
                        soon[entry.number] = entry
        return list(soon.values())

    def _is_near(self, tenant: TierTenant) -> bool:
        """Return whether a tenant has reached most of its limit."""
        limit = tenant.account.limit_bytes
        return limit is not None and tenant.bytes + tenant.pending_bytes >= SOON_ABOVE * limit

    # ---- tenants

    def set_shares(self, shares: Mapping[str, TierShare]) -> None:
        """Set the quotas of tenants in this tier; tenants without one share the rest. Floors are scaled down when the
        budget cannot hold their sum."""
        floors = effective_floors({salt: share.floor_bytes for salt, share in shares.items()}, self.target_bytes)
        leaving = [t for t in self.tenants.values() if t.share is not None and t.salt not in shares]
        for tenant in leaving:
            self._order.close(tenant)
            tenant.share = None
            self._forget_unused(tenant)
        for salt, share in shares.items():
            tenant = self._tenant(salt)
            if tenant.share is None:
                self._order.open(tenant)
            tenant.share = share
            account = tenant.account
            account.floor_bytes, account.limit_bytes = floors[salt], share.limit_bytes
            account.weight = share.weight
            self._order.ranking.changed(account)
            if share.limit_bytes is not None and tenant.bytes + tenant.pending_bytes > share.limit_bytes:
                self._over[salt] = None

    def largest_tenants(self, most: int) -> Iterable[TierTenant]:
        """Return the tenants that hold the most bytes."""
        return sorted(self.tenants.values(), key=lambda tenant: -tenant.bytes)[:most]

    def _at(self, number: int) -> TierEntry:
        entry = self.numbered[number]
        assert entry is not None
        return entry

    def _tenant(self, salt: str) -> TierTenant:
        tenant = self.tenants.get(salt)
        if tenant is None:
            tenant = self.tenants[salt] = TierTenant(salt, self._order.common)
        return tenant

    def _forget_unused(self, tenant: TierTenant) -> None:
        if tenant.unused and self.tenants.get(tenant.salt) is tenant:
            del self.tenants[tenant.salt]

    def _count(self, entry: TierEntry, blocks: int) -> None:
        """Count a block that is added (1) or removed (-1)."""
        self.logical_bytes += blocks * entry.stored.length
        count = self.encodings.get(entry.encoding, 0) + blocks
        self.encodings[entry.encoding] = count
        if not count:
            del self.encodings[entry.encoding]

    def _charge(self, tenant: TierTenant, nbytes: int, blocks: int) -> None:
        self._order.charge(tenant, nbytes)
        tenant.blocks += blocks
        self.used_bytes += nbytes


def shares_in(name: str, tenants: Iterable[Tenant]) -> dict[str, TierShare]:
    """Return the quotas that are enforced in the tier of this name, by salt."""
    return {
        tenant.salt: TierShare(
            quota.floor_bytes, quota.limit_bytes, tenant.spec.weight, rejects=tenant.spec.on_exceed == "reject"
        )
        for tenant in tenants
        if tenant.spec is not None and tenant.enforced and (quota := tenant.spec.tiers.get(name)) is not None
    }


def pin_budgets(tenants: Iterable[Tenant], shares: Mapping[str, TierShare]) -> dict[str, int]:
    """Return the bytes that guaranteed pins may hold in the tier, by salt, for tenants with a bound: the smaller of
    `pin_budget_bytes` of their quota and 90 % of their limit in the tier, so that pins leave room below the limit."""
    budgets: dict[str, int] = {}
    for tenant in tenants:
        if tenant.spec is None or not tenant.enforced:
            continue
        share = shares.get(tenant.salt)
        limit = None if share is None else share.limit_bytes
        bounds = [tenant.spec.pin_budget_bytes, None if limit is None else limit * 9 // 10]
        limits = [bound for bound in bounds if bound is not None]
        if limits:
            budgets[tenant.salt] = min(limits)
    return budgets
