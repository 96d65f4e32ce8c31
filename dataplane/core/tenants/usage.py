"""Usage of tenants since the process started: the numbers for bills and reports.

There is one account for each tenant and family of spaces. A family is the spaces of a model that differ only by rank,
pipeline stage and KV group. One request of an engine with many ranks touches all spaces of a family. Bytes, evictions
and refusals are summed over the ranks, because that is their cost. Tokens are counted once, in the leading space (rank,
stage and group 0): a look-up counts when its engine is attached with a leading space, whatever its other spaces are,
and an acquired chain counts in its leading space only. One process, the scheduler or the worker of rank 0, looks up and
acquires for a request, and it does so once.

Bytes over time are exact: an account is settled, in whole bytes times microseconds, before its bytes change and when
they are reported. Accounts that hold no bytes and whose counts a reader has recorded are closed after a while. The
number of accounts is bounded; beyond it, tenants without a record share one account. Salts, which engines choose
freely, thus take bounded memory.
"""

from __future__ import annotations

from itertools import islice

from dataplane.core.spaces import Spaces
from dataplane.core.tenants.tenant import Tenant, UsageAccount
from dataplane.protocol.spaces import leading
from dataplane.protocol.usage import MAX_USAGE_PART, UsageCounters

MAX_ACCOUNTS = 10_000
"""Maximum number of accounts of tenants without a record; the number of records bounds the others."""
IDLE_US = 3600 * 1_000_000
"""Microseconds for which an account that holds no bytes stays after its last change."""


class UsageTable:
    """All usage accounts. Call `pass_to` with the current time before any change."""

    def __init__(self, spaces: Spaces, most: int = MAX_ACCOUNTS) -> None:
        self._spaces = spaces
        self._most = most
        self._now_us = 0
        self._numbers = 0
        self._own: dict[tuple[str, str], UsageAccount] = {}
        """Accounts of single tenants, by salt and family."""
        self._others: dict[str, UsageAccount] = {}
        """Shared accounts, by family."""
        self._by_number: dict[int, UsageAccount] = {}
        """All open accounts, lowest number first."""

    def accounts(self) -> list[UsageAccount]:
        """Return the open accounts, oldest first."""
        return list(self._by_number.values())

    def pass_to(self, now: float) -> None:
        """Advance the time to `now`. If the clock was set back, the time stays where it is."""
        now_us = int(now * 1_000_000)
        if now_us > self._now_us:
            self._now_us = now_us

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

    def served(self, tenant: Tenant, space: int, blocks: int) -> None:
        """Record a chain acquired in a space. It counts only in a leading space."""
        if self._spaces.leads(space):
            tokens = blocks * self._spaces.by_number[space].block_tokens
            self._settled(tenant, space).served_tokens += tokens

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
        now_us = self._now_us
        account.byte_us += account.bytes * (now_us - account.at_us)
        account.at_us = now_us
        return account

    # ---- accounts

    def _find(self, tenant: Tenant, space: int) -> UsageAccount:
        """Return the account for a space that this tenant has not used before; open one if necessary."""
        declared = self._spaces.by_number[space]
        family = leading(declared).identity()
        account = self._own.get((tenant.salt, family))
        if account is None:
            if len(self._own) < self._most or tenant.managed:
                account = self._own[tenant.salt, family] = self._open(tenant, declared.model, family)
            else:
                account = self._others.get(family)
                if account is None:
                    account = self._others[family] = self._open(None, declared.model, family)
        elif account.tenant is not tenant:  # the tenant was forgotten and created again
            account.tenant = tenant
        account.spaces.add(space)
        tenant.usage[space] = account
        return account

    def _open(self, tenant: Tenant | None, model: str, family: str) -> UsageAccount:
        self._numbers += 1
        account = UsageAccount(self._numbers, tenant, model, family, self._now_us)
        self._by_number[account.number] = account
        return account

    # ---- reading

    def part(self, after: int) -> tuple[list[UsageCounters], int]:
        """Return counters of accounts with numbers above `after`, lowest first, and the `after` of the next call; 0 at
        the end."""
        rest = (account for number, account in self._by_number.items() if number > after)
        chosen = list(islice(rest, MAX_USAGE_PART + 1))
        for account in chosen:
            account.byte_us += account.bytes * (self._now_us - account.at_us)
            if account.bytes:
                account.at_us = self._now_us
        more = len(chosen) > MAX_USAGE_PART
        del chosen[MAX_USAGE_PART:]
        return [account.told() for account in chosen], chosen[-1].number if more else 0

    def close_idle(self, noted: float) -> None:
        """Close accounts that hold no bytes and have long been idle.

        `noted` is the time in Unix seconds up to which a reader has recorded all usage; only accounts that have not
        changed since are closed.
        """
        until = min(int(noted * 1_000_000), self._now_us - IDLE_US)
        idle = [
            account
            for account in self._by_number.values()
            if not account.bytes and account.at_us < until and account.tenant is not None
        ]
        for account in idle:
            assert account.tenant is not None
            for space in account.spaces:
                account.tenant.usage.pop(space, None)
            del self._own[account.tenant.salt, account.family]
            del self._by_number[account.number]
