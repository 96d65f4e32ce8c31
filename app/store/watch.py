"""Whether the database answers, said once when it stops and once when it is back, however many notice."""

import time
from collections.abc import Callable
from typing import Literal

import structlog

Kind = Literal["read", "write"]


class Watch:
    """Fed by every transaction. A database may still be read and take no changes (a full disk, a read-only file)."""

    def __init__(self) -> None:
        self._failing: set[Kind] = set()
        self._since = 0.0
        self._failed_at = 0.0
        self._log = structlog.get_logger()
        self.tell: Callable[[bool, str, float], None] = lambda away, reason, seconds: None
        """Called at both turns: whether it is away, why, and how long it was (0 when it just went)."""

    @property
    def away(self) -> bool:
        return bool(self._failing)

    def failed(self, kind: Kind, reason: str) -> None:
        self._failed_at = time.monotonic()
        if not self._failing:
            self._since = self._failed_at
            self._log.warning("database.away", what=f"{kind}s", reason=reason)
            self.tell(True, reason, 0.0)
        self._failing.add(kind)

    def worked(self, kind: Kind, began: float) -> None:
        """A transaction that began (monotonic seconds) after the last failure; one from before proves nothing. A change
        that was committed proves that reading works too."""
        if not self._failing or began < self._failed_at:
            return
        self._failing -= {"read", "write"} if kind == "write" else {"read"}
        if not self._failing:
            away_s = time.monotonic() - self._since
            self._log.info("database.back", away_s=round(away_s, 3))
            self.tell(False, "", away_s)
