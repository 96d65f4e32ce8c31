"""Usage counters on their way from nodes to the ledger, kept while the database is unavailable. Time is an argument.

For each account and hour, the last reported numbers are kept. They are totals, not differences: numbers that were
missed are contained in the next ones, and numbers that are written twice count once.
"""

from collections.abc import Sequence

from app.store.usage.ledger import COUNTERS, TIER_COUNTERS, ReportedUsage
from dataplane.base.visible import is_printable
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import salt_of
from dataplane.protocol.tiers import is_tier_name
from dataplane.protocol.usage import OTHERS, TierUsageCounters, UsageCounters

HOUR_S = 3600
MAX_MODEL_CHARACTERS = 256
MAX_SPACE_CHARACTERS = 128
MAX_WAITING = 1_000_000
"""Maximum number of pending reports; beyond it the oldest hours are merged into the next one."""
_MAX = 2**63 - 1
Account = tuple[str, str, int, str]
"""Node, epoch, number of the account, and the name of a tier; empty for the account as a whole."""


class PendingUsage:
    """Reports that are yet to be written."""

    def __init__(self, max_accounts: int = MAX_WAITING) -> None:
        self._max_accounts = max_accounts
        self._pending: dict[int, dict[Account, ReportedUsage]] = {}
        self._last_reports: dict[str, dict[Account, tuple[int, ...]]] = {}
        """Last report of each account by node, to skip unchanged ones."""
        self._current_reports: dict[str, dict[Account, tuple[int, ...]]] = {}
        """The same for the reading that is in progress."""

    def __len__(self) -> int:
        return sum(map(len, self._pending.values()))

    def begin(self, node: str) -> None:
        """Begin a reading of a node."""
        self._current_reports[node] = {}

    def take(self, node: str, epoch: str, accounts: Sequence[UsageCounters], now: float) -> int:
        """Add the accounts of a reading. Return the number of accounts, and of tiers in accounts, that were skipped
        because they are invalid."""
        hour = int(now // HOUR_S) * HOUR_S
        last, current = self._last_reports.get(node, {}), self._current_reports.setdefault(node, {})
        invalid = 0
        for account in accounts:
            counts, salt = _counts(account), _salt(account)
            if counts is None or salt is None:
                invalid += 1
                continue
            of_tiers = [(name, _tier_counts(name, usage)) for name, usage in account.tiers.items()]
            for tier, part in [("", counts), *of_tiers]:
                if part is None:
                    invalid += 1
                    continue
                key = (node, epoch, account.number, tier)
                current[key] = part
                if last.get(key) != part:
                    self._pending.setdefault(hour, {})[key] = ReportedUsage(
                        node, epoch, account.number, salt, account.model, account.space, now, part, tier
                    )
        self._bound()
        return invalid

    def end(self, node: str) -> None:
        """Complete a reading: accounts that it did not contain no longer exist."""
        self._last_reports[node] = self._current_reports.pop(node, {})

    def _bound(self) -> None:
        while len(self._pending) > 1 and len(self) > self._max_accounts:
            first, second = sorted(self._pending)[:2]
            oldest = self._pending.pop(first)
            self._pending[second] = oldest | self._pending[second]

    def take_all(self) -> list[tuple[int, ReportedUsage]]:
        """Remove and return all pending reports, oldest first. Use `put_back` if they cannot be written."""
        reports = [(hour, report) for hour in sorted(self._pending) for report in self._pending[hour].values()]
        reports.sort(key=lambda pair: pair[1].at)
        self._pending.clear()
        return reports

    def put_back(self, reports: Sequence[tuple[int, ReportedUsage]]) -> None:
        """Put back reports that could not be written. Reports that arrived meanwhile are newer and take precedence."""
        for hour, report in reports:
            self._pending.setdefault(hour, {}).setdefault(
                (report.node, report.epoch, report.number, report.tier), report
            )

    def forget(self) -> None:
        """Discard everything: another manager writes the ledger from now on."""
        self._pending.clear()
        self._last_reports.clear()
        self._current_reports.clear()


def _counts(account: UsageCounters) -> tuple[int, ...] | None:
    """Return the counters as in the ledger; None if they are invalid."""
    refused = sum(account.refused.values())
    counts = tuple(refused if name == "refused_blocks" else getattr(account, name) for name in COUNTERS)
    numbers = (account.number, *account.refused.values(), *counts)
    if not all(0 <= number <= _MAX for number in numbers):
        return None
    for name, limit in ((account.model, MAX_MODEL_CHARACTERS), (account.space, MAX_SPACE_CHARACTERS)):
        if not 0 < len(name) <= limit or not is_printable(name):
            return None
    return counts


def _tier_counts(name: str, tier: TierUsageCounters) -> tuple[int, ...] | None:
    """Return the counters of a tier as in the ledger; None if they or its name are invalid."""
    counts = tuple(getattr(tier, name) for name in TIER_COUNTERS)
    return counts if is_tier_name(name) and all(0 <= number <= _MAX for number in counts) else None


def _salt(account: UsageCounters) -> str | None:
    """Return the salt as in the ledger; None if the name is not a tenant's."""
    if account.tenant == OTHERS:
        return OTHERS
    try:
        return salt_of(account.tenant)
    except ProtocolError:
        return None
