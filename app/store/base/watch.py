"""Availability of the database. Reported once when it is lost and once when it is back, however many callers notice."""

import time
from collections.abc import Callable
from typing import Literal

import structlog

Kind = Literal["read", "write"]


class DatabaseWatch:
    """Receives the result of every transaction. Reads may work while changes fail (a full disk, a read-only file)."""

    def __init__(self, on_change: Callable[[bool, str, float], None]) -> None:
        """`on_change` is called when availability changes: whether it is away, the reason, and seconds away (0 when
        just lost)."""
        self._on_change = on_change
        self._failing: dict[Kind, str] = {}
        """Reason of the failure, for each kind that fails."""
        self._since = 0.0
        self._failed_at = 0.0
        self._recovered_at = 0.0
        self._log = structlog.get_logger()

    @property
    def away(self) -> bool:
        return bool(self._failing)

    @property
    def refuses_changes(self) -> str:
        """Reason why the last change was refused; empty if changes are accepted."""
        return self._failing.get("write", "")

    def failed(self, kind: Kind, reason: str, began: float) -> None:
        """Record a transaction that failed. One that began (monotonic seconds) before a recovery does not count."""
        if not self._failing and began < self._recovered_at:
            return
        self._failed_at = time.monotonic()
        if not self._failing:
            self._since = self._failed_at
            self._log.warning("database.lost", what=f"{kind}s", reason=reason)
            self._on_change(True, reason, 0.0)
        self._failing[kind] = reason

    def worked(self, kind: Kind, began: float) -> None:
        """Record a transaction that worked. One that began (monotonic seconds) before the last failure proves nothing.

        A committed change proves that reading works too.
        """
        if not self._failing or began < self._failed_at:
            return
        self._failing.pop("read", None)
        if kind == "write":
            self._failing.pop("write", None)
        if not self._failing:
            self._recovered_at = time.monotonic()
            away_s = self._recovered_at - self._since
            self._log.info("database.recovered", away_s=round(away_s, 3))
            self._on_change(False, "", away_s)
