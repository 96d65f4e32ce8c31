"""Usage of tenants since the process started: the numbers for bills and reports.

There is one account for each tenant and family of spaces. A family is the spaces of a model that differ only by rank,
pipeline stage and KV group. One request of an engine with many ranks touches all spaces of a family. Bytes, evictions
and refusals are summed over the ranks, because that is their cost. Tokens are counted once, in the leading space (rank,
stage and group 0): a look-up counts when its engine is attached with a leading space, whatever its other spaces are,
and an acquired chain counts in its leading space only. One process, the scheduler or the worker of rank 0, looks up and
acquires for a request, and it does so once.

Tiers behind memory have counters of their own in each account: the bytes that they hold over time, and what they
served. A tier served a block if an engine acquires it for the first time after it was loaded; each later acquire is
served by memory. A tier knows a block's space by its identity alone. Until an engine attaches the space, its bytes are
in an account of the model `UNKNOWN_MODEL`.

Bytes over time are exact: an account is settled, in whole bytes times microseconds, before its bytes change and when
they are reported. Accounts that hold no bytes and whose counts a reader has recorded are closed after a while. The
number of accounts is bounded; beyond it, tenants without a record share one account. Salts, which engines choose
freely, thus take bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from dataplane.core.spaces import Spaces
from dataplane.core.tenants.tenant import Tenant, TierAccount, UsageAccount
from dataplane.protocol.spaces import leading
from dataplane.protocol.usage import MAX_USAGE_PART, MAX_USAGE_TIERS, OTHERS, UNKNOWN_MODEL, UsageCounters

MAX_ACCOUNTS = 10_000
"""Maximum number of accounts of tenants without a record; the number of records bounds the others."""
IDLE_US = 3600 * 1_000_000
"""Microseconds for which an account that holds no bytes stays after its last change."""


@dataclass(slots=True)
class TierCharge:
    """Bytes of one tenant in one space that a tier holds, and the account that is charged for them."""

    account: UsageAccount
    bytes: int = 0


class UsageTable:
    """All usage accounts. Call `pass_to` with the current time before any change."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._now_us = 0
        self._numbers = 0
        self._own: dict[tuple[str, str], UsageAccount] = {}
        """Accounts of single tenants, by salt and family."""
        self._others: dict[str, UsageAccount] = {}
        """Shared accounts, by family."""
        self._by_number: dict[int, UsageAccount] = {}
        """All open accounts, lowest number first."""
        self._tier_charges: dict[tuple[str, str, bytes], TierCharge] = {}
        """By name of the tier, salt, and identity of the space; only those of more than 0 bytes."""
        self._unknown: set[bytes] = set()
        """Identities of spaces that no engine has attached, although tiers hold their blocks."""

    def accounts(self) -> list[UsageAccount]:
        """Return the open accounts, oldest first."""
        return list(self._by_number.values())

    def pass_to(self, now: float) -> None:
        """Advance the time to `now`. If the clock was set back, the time stays where it is."""
        now_us = int(now * 1_000_000)
        if now_us > self._now_us:
            self._now_us = now_us

    @property
    def now(self) -> float:
        """Return the time of the step in progress, in Unix seconds."""
        return self._now_us / 1_000_000

    # ---- recording

    def charge(self, tenant: Tenant, space: int, nbytes: int) -> None:
        """Charge bytes to a tenant; a negative number gives bytes back."""
        self._settled(tenant, space).bytes += nbytes

    def evicted(self, tenant: Tenant, space: int, blocks: int, nbytes: int) -> None:
        """Record evicted blocks of `nbytes` charged bytes in all, and give their bytes back."""
        account = self._settled(tenant, space)
        account.bytes -= nbytes
        account.evicted_blocks += blocks
        account.evicted_bytes += nbytes

    def looked_up(self, tenant: Tenant, space: int, blocks: int) -> None:
        """Record a look-up by an engine whose leading space is or was `space`."""
        declared = self._spaces.by_number.get(space)
        if declared is not None:
            self._settled(tenant, space).requested_tokens += blocks * declared.block_tokens

    def served(self, tenant: Tenant, space: int, blocks: int, nbytes: int) -> int:
        """Record a chain of `nbytes` bytes acquired in a space, and return its tokens. They count only in a leading
        space."""
        account = self._settled(tenant, space)
        account.served_bytes += nbytes
        if not self._spaces.leads(space):
            return 0
        tokens = blocks * self._spaces.by_number[space].block_tokens
        account.served_tokens += tokens
        return tokens

    def served_by_tier(self, tenant: Tenant, space: int, nbytes: int, name: str) -> None:
        """Record that a block of an acquired chain came from the tier of this name. `served` counts it, too."""
        tier = self._tier_of(self._settled(tenant, space), name)
        tokens = self._spaces.by_number[space].block_tokens if self._spaces.leads(space) else 0
        tier.served_bytes += nbytes
        tier.served_tokens += tokens
        tenant.hit_in_tier(name, tokens, nbytes)

    def charge_tier(self, name: str, salt: str, space: bytes, nbytes: int, *, managed: bool) -> None:
        """Charge a tenant, with or without a quota (`managed`), for bytes that a tier holds in a space of this
        identity; a negative number gives bytes back."""
        key = (name, salt, space)
        charge = self._tier_charges.get(key)
        if charge is None:
            account = self._account_of(salt, space, managed=managed)
            charge = self._tier_charges[key] = TierCharge(account)
        self._charge_account(charge.account, name, nbytes)
        charge.bytes += nbytes
        if not charge.bytes:
            del self._tier_charges[key]

    def _charge_account(self, account: UsageAccount, name: str, nbytes: int) -> None:
        account.settle(self._now_us)
        self._tier_of(account, name).bytes += nbytes

    def _tier_of(self, account: UsageAccount, name: str) -> TierAccount:
        tier = account.tiers.get(name)
        if tier is None:
            if len(account.tiers) >= MAX_USAGE_TIERS:
                name = OTHERS
            tier = account.tiers.setdefault(name, TierAccount(self._now_us))
        return tier

    def stored(self, tenant: Tenant, space: int, blocks: int, nbytes: int) -> None:
        """Record published blocks of `nbytes` bytes without padding."""
        account = self._settled(tenant, space)
        account.stored_blocks += blocks
        account.stored_bytes += nbytes

    def refused(self, tenant: Tenant, space: int, name: str, blocks: int) -> None:
        """Record refused blocks."""
        refused = self._settled(tenant, space).refused
        refused[name] = refused.get(name, 0) + blocks

    def _settled(self, tenant: Tenant, space: int) -> UsageAccount:
        account = tenant.usage.get(space)
        if account is None:
            account = self._find(tenant, space)
        account.settle(self._now_us)
        return account

    # ---- accounts

    def _find(self, tenant: Tenant, space: int) -> UsageAccount:
        """Return the account for a space that this tenant has not used before; open one if necessary."""
        declared = self._spaces.by_number[space]
        family = leading(declared).identity()
        account = self._open(tenant.salt, family, declared.model, family, managed=tenant.managed)
        if account.salt is not None:
            account.tenant = tenant  # it may have been forgotten and created again
        account.spaces.add(space)
        tenant.usage[space] = account
        return account

    def _account_of(self, salt: str, space: bytes, *, managed: bool) -> UsageAccount:
        """Return the account for the bytes that a tier holds in a space of this identity."""
        declared = self._spaces.of_identity(space)
        if declared is None:
            self._unknown.add(space)
            return self._open(salt, f"/{space.hex()}", UNKNOWN_MODEL, space.hex(), managed=managed)
        family = leading(declared).identity()
        return self._open(salt, family, declared.model, family, managed=managed)

    def _open(self, salt: str, key: str, model: str, family: str, *, managed: bool) -> UsageAccount:
        """Return the account of a tenant in a family of spaces; open one if necessary."""
        account = self._own.get((salt, key))
        if account is not None:
            return account
        if len(self._own) < MAX_ACCOUNTS or managed:
            account = self._own[salt, key] = self._new(salt, key, model, family)
            return account
        account = self._others.get(key)
        if account is None:
            account = self._others[key] = self._new(None, key, model, family)
        return account

    def _new(self, salt: str | None, key: str, model: str, family: str) -> UsageAccount:
        self._numbers += 1
        account = UsageAccount(self._numbers, salt, key, model, family, self._now_us)
        self._by_number[account.number] = account
        return account

    def _learn_models(self) -> None:
        """Move the bytes of spaces that engines have attached meanwhile to the accounts of their models."""
        attached = self._unknown & self._spaces.by_identity.keys()
        if not attached:
            return
        self._unknown -= attached
        for (name, salt, space), charge in self._tier_charges.items():
            if space not in attached:
                continue
            self._charge_account(charge.account, name, -charge.bytes)
            charge.account = self._account_of(salt, space, managed=charge.account.salt is not None)
            self._charge_account(charge.account, name, charge.bytes)

    # ---- reading

    def part(self, after: int) -> tuple[list[UsageCounters], int]:
        """Return counters of accounts with numbers above `after`, lowest first, and the `after` of the next call; 0 at
        the end."""
        if not after:
            self._learn_models()
        following = (account for number, account in self._by_number.items() if number > after)
        chosen = list(islice(following, MAX_USAGE_PART + 1))
        for account in chosen:
            if account.holds_bytes:
                account.settle(self._now_us)
        has_more = len(chosen) > MAX_USAGE_PART
        del chosen[MAX_USAGE_PART:]
        return [account.counters() for account in chosen], chosen[-1].number if has_more else 0

    def close_idle(self, noted: float, tenants: Iterable[Tenant]) -> None:
        """Close accounts that hold no bytes and have long been idle.

        `noted` is the time in Unix seconds up to which a reader has recorded all usage; only accounts that have not
        changed since are closed. `tenants` are those that may use a shared account.
        """
        until = min(int(noted * 1_000_000), self._now_us - IDLE_US)
        accounts = self._by_number.values()
        idle = [account for account in accounts if account.at_us < until and not account.holds_bytes]
        shared: set[UsageAccount] = set()
        for account in idle:
            del self._by_number[account.number]
            if account.salt is None:
                del self._others[account.key]
                shared.add(account)
                continue
            if account.tenant is not None:
                for space in account.spaces:
                    account.tenant.usage.pop(space, None)
            del self._own[account.salt, account.key]
        for tenant in tenants if shared else ():
            for space in [space for space, account in tenant.usage.items() if account in shared]:
                del tenant.usage[space]
