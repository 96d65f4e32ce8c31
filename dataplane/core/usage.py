"""What tenants used since the process began: the numbers that a bill or a report is made of.

One account for each tenant and family of spaces: those of a model that differ by rank, pipeline stage and KV group
alone. One request of an engine with many ranks touches all of them. Bytes, evictions and refusals are summed over the
ranks, for that is what they cost. Tokens are counted once, in the leading space (rank, stage and group 0): a look-up
when the engine that made it is attached with a leading space, whatever its other spaces, and an acquired chain in its
leading space only. Whoever looks up and acquires for a request, the scheduler or the worker of rank 0, does it once.

Bytes over time are exact: an account is settled, in whole bytes times microseconds, before its bytes change and when
they are told. Accounts that hold nothing and that a reader has taken note of are closed after a while, and there are
at most so many: beyond, tenants without a record share one. So salts that engines choose freely cost bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from dataplane.core.spaces import Spaces
from dataplane.protocol.salts import shown
from dataplane.protocol.spaces import leading
from dataplane.protocol.usage import MAX_USAGE_PART, OTHERS, UsageCounters

if TYPE_CHECKING:
    from dataplane.core.blocks import Block
    from dataplane.core.quotas import Tenant

MAX_ACCOUNTS = 10_000
"""Of tenants without a record; those with one are bounded by their records."""
IDLE_US = 3600 * 1_000_000
"""How long an account that holds nothing stays after its last change."""
_KIB_S = 1024 * 1_000_000
_MOST = 2**63 - 1


@dataclass(eq=False, slots=True)
class UsageAccount:
    """One tenant in one family of spaces. Counts in blocks and bytes; microseconds of the node's clock."""

    number: int
    tenant: Tenant | None
    """None: the tenants that have no account of their own."""
    model: str
    family: str
    at_us: int
    """Last change; the integral goes up to here."""
    spaces: set[int] = field(default_factory=set)
    bytes: int = 0
    byte_us: int = 0
    requested_tokens: int = 0
    served_tokens: int = 0
    stored_blocks: int = 0
    stored_bytes: int = 0
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    def told(self) -> UsageCounters:
        """As it goes over the wire. What engines claim may wrap around, but breaks no message."""
        return UsageCounters(
            number=self.number,
            tenant=OTHERS if self.tenant is None else shown(self.tenant.salt),
            model=self.model,
            space=self.family,
            held_kib_s=self.byte_us // _KIB_S & _MOST,
            requested_tokens=self.requested_tokens & _MOST,
            served_tokens=self.served_tokens & _MOST,
            stored_blocks=self.stored_blocks,
            stored_bytes=self.stored_bytes,
            evicted_blocks=self.evicted_blocks,
            evicted_bytes=self.evicted_bytes,
            refused=dict(self.refused),
        )


class Usage:
    """All accounts. `pass_to` tells it the time, before anything changes."""

    def __init__(self, spaces: Spaces, most: int = MAX_ACCOUNTS) -> None:
        self._spaces = spaces
        self._most = most
        self._now_us = 0
        self._numbers = 0
        self._own: dict[tuple[str, str], UsageAccount] = {}
        """By salt and family."""
        self._others: dict[str, UsageAccount] = {}
        """By family."""
        self._by_number: dict[int, UsageAccount] = {}
        """Lowest number first."""

    def accounts(self) -> list[UsageAccount]:
        """Those that are open, the oldest first."""
        return list(self._by_number.values())

    def pass_to(self, now: float) -> None:
        """It is `now`. A clock that was put back stands still here."""
        now_us = int(now * 1_000_000)
        if now_us > self._now_us:
            self._now_us = now_us

    # ---- what happens

    def charge(self, tenant: Tenant, space: int, nbytes: int) -> None:
        """Bytes were charged to a tenant; below 0: given back."""
        self._settled(tenant, space).bytes += nbytes

    def evicted(self, tenant: Tenant, blocks: Sequence[Block], nbytes: int) -> None:
        """Blocks made room: their bytes are given back."""
        for space, size, count in _by_space(blocks, nbytes):
            account = self._settled(tenant, space)
            account.bytes -= size
            account.evicted_blocks += count
            account.evicted_bytes += size

    def looked_up(self, tenant: Tenant, space: int, blocks: int) -> None:
        """A look-up by an engine whose leading space this is, or was."""
        declared = self._spaces.by_number.get(space)
        if declared is not None:
            self._settled(tenant, space).requested_tokens += blocks * declared.block_tokens

    def served(self, tenant: Tenant, space: int, blocks: int) -> None:
        """A chain was acquired in a space; counts when it leads."""
        if self._spaces.leads(space):
            tokens = blocks * self._spaces.by_number[space].block_tokens
            self._settled(tenant, space).served_tokens += tokens

    def stored(self, tenant: Tenant, space: int, blocks: int, nbytes: int) -> None:
        """Blocks were published; `nbytes` without padding."""
        account = self._settled(tenant, space)
        account.stored_blocks += blocks
        account.stored_bytes += nbytes

    def refused(self, tenant: Tenant, space: int, name: str, blocks: int) -> None:
        """Blocks were not taken."""
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
        """The account behind a space number that this tenant has not met; opened on first sight."""
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
        elif account.tenant is not tenant:  # it was forgotten, and has come back
            account.tenant = tenant
        account.spaces.add(space)
        tenant.usage[space] = account
        return account

    def _open(self, tenant: Tenant | None, model: str, family: str) -> UsageAccount:
        self._numbers += 1
        account = UsageAccount(self._numbers, tenant, model, family, self._now_us)
        self._by_number[account.number] = account
        return account

    # ---- for a reader

    def part(self, after: int) -> tuple[list[UsageCounters], int]:
        """Counters of accounts with numbers above `after`, lowest first, and the number to go on after; 0: no more."""
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
        """A reader has everything that happened before `noted` (Unix seconds): close what is idle since long before."""
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


def _by_space(blocks: Sequence[Block], nbytes: int) -> Iterable[tuple[int, int, int]]:
    """Space, charged bytes and number of blocks that are charged with `nbytes` in all."""
    if len({block.space for block in blocks}) == 1:
        return ((blocks[0].space, nbytes, len(blocks)),)
    sums: dict[int, tuple[int, int]] = {}
    for block in blocks:
        size, count = sums.get(block.space, (0, 0))
        sums[block.space] = size + block.charge, count + 1
    return [(space, *each) for space, each in sums.items()]
