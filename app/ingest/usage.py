"""Counters of usage on their way from nodes to the ledger, kept while the database is away. Pure: time is an argument.

Of each account and hour the last numbers that were told wait here. They are totals, not differences: whatever was
missed in between is in the next ones, and what is written twice counts once.
"""

from collections.abc import Sequence

from app.store.usage import Told
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import salt_of
from dataplane.protocol.usage import OTHERS, UsageCounters

HOUR_S = 3600
MAX_MODEL_CHARACTERS = 256
MAX_SPACE_CHARACTERS = 128
MAX_WAITING = 1_000_000
"""Numbers that wait for the database at most: then the oldest hours are told as part of the next one."""
_MOST = 2**63 - 1
Account = tuple[str, str, int]
"""Node, epoch, number."""


class Waiting:
    """What was told and is not written."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        self._told: dict[int, dict[Account, Told]] = {}
        self._seen: dict[str, dict[Account, tuple[int, ...]]] = {}
        """What each node told last, to leave out what did not change."""
        self._seeing: dict[str, dict[Account, tuple[int, ...]]] = {}
        """The same of the reading that goes on."""

    def __len__(self) -> int:
        return sum(map(len, self._told.values()))

    def begin(self, node: str) -> None:
        """A reading of a node begins."""
        self._seeing[node] = {}

    def take(self, node: str, epoch: str, accounts: Sequence[UsageCounters], now: float) -> int:
        """Numbers of a reading, told now; returns how many were left out because they cannot be."""
        hour = int(now // HOUR_S) * HOUR_S
        seen, seeing = self._seen.get(node, {}), self._seeing.setdefault(node, {})
        wrong = 0
        for account in accounts:
            counts, salt = _counts(account), _salt(account)
            if counts is None or salt is None:
                wrong += 1
                continue
            key = (node, epoch, account.number)
            seeing[key] = counts
            if seen.get(key) != counts:
                told = Told(node, epoch, account.number, salt, account.model, account.space, now, counts)
                self._told.setdefault(hour, {})[key] = told
        self._bound()
        return wrong

    def end(self, node: str) -> None:
        """The reading is whole: what it did not tell is not there any more."""
        self._seen[node] = self._seeing.pop(node, {})

    def _bound(self) -> None:
        while len(self._told) > 1 and len(self) > self._most:
            first, second = sorted(self._told)[:2]
            oldest = self._told.pop(first)
            self._told[second] = oldest | self._told[second]

    def out(self) -> list[tuple[int, Told]]:
        """Everything that waits, oldest first; it waits no more unless it is put `back`."""
        told = [(hour, each) for hour in sorted(self._told) for each in self._told[hour].values()]
        told.sort(key=lambda pair: pair[1].at)
        self._told.clear()
        return told

    def back(self, told: Sequence[tuple[int, Told]]) -> None:
        """It could not be written. What was told meanwhile is newer."""
        for hour, each in told:
            self._told.setdefault(hour, {}).setdefault((each.node, each.epoch, each.number), each)

    def forget(self) -> None:
        """Somebody else writes from now on."""
        self._told.clear()
        self._seen.clear()
        self._seeing.clear()


def _counts(account: UsageCounters) -> tuple[int, ...] | None:
    """As the ledger has them; None for what no node of ours tells."""
    counts = (
        account.held_kib_s,
        account.requested_tokens,
        account.served_tokens,
        account.stored_blocks,
        account.stored_bytes,
        account.evicted_blocks,
        account.evicted_bytes,
        sum(account.refused.values()),
    )
    numbers = (account.number, *account.refused.values(), *counts)
    if not all(0 <= number <= _MOST for number in numbers):
        return None
    for name, most in ((account.model, MAX_MODEL_CHARACTERS), (account.space, MAX_SPACE_CHARACTERS)):
        if not 0 < len(name) <= most or not name.isprintable():
            return None
    return counts


def _salt(account: UsageCounters) -> str | None:
    """As the ledger has it; None for what is no tenant."""
    if account.tenant == OTHERS:
        return OTHERS
    try:
        return salt_of(account.tenant)
    except ProtocolError:
        return None
