"""The circuit breaker of a tier. It takes the tier out of service after failures in a row, when half of the calls fail,
or after a failed probe, and back into service after a probe that succeeds. A call that misses its deadline fails."""

from __future__ import annotations

from collections import deque

FAILURES = 3
"""Calls that fail in a row before the tier is taken out of service."""
RECENT = 20
"""Calls of which half may not fail: a tier that fails every other call makes engines wait for nothing."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
CHECK_S = 10.0
"""Interval between probes of a tier in service. Calls to open files succeed although their directory is gone."""


class Breaker:
    """State of one tier. Times are seconds of any clock that does not step back."""

    def __init__(self) -> None:
        self.reason = ""
        """Why the tier is out of service; empty while it serves."""
        self.opened = 0
        """Number of times that the tier was taken out of service."""
        self._failures = 0
        self._recent: deque[bool] = deque(maxlen=RECENT)
        """Results of the last calls: true for a call that failed."""
        self._wait_s = FIRST_WAIT_S
        self._probe_at = 0.0
        """When the next probe of the tier is due; 0 before the first call of `wants_probe`."""
        self._probing = False
        self._began_in_service = False
        """Whether the tier was in service when the last probe began."""

    @property
    def serves(self) -> bool:
        """Whether calls may be made."""
        return not self.reason

    def succeeded(self) -> None:
        """Record a call that succeeded while the tier serves."""
        self._failures = 0
        self._recent.append(False)
        if self.serves:
            self._wait_s = FIRST_WAIT_S

    def failed(self, reason: str, now: float, *, whole: bool = False) -> None:
        """Record a call that failed. With `whole`, the tier is out of service at once."""
        self._failures += 1
        self._recent.append(True)
        often = 2 * sum(self._recent) >= RECENT
        if self.serves and (whole or self._failures >= FAILURES or often):
            self.reason = reason or "calls fail"
            self.opened += 1
            self._probe_at = now + self._wait_s

    def wants_probe(self, now: float) -> bool:
        """Return whether a probe is due. The caller then probes, and calls `probed`."""
        if not self._probe_at:
            self._probe_at = now + CHECK_S
        if self._probing or now < self._probe_at:
            return False
        self._probing = True
        self._began_in_service = self.serves
        return True

    def probed(self, reason: str, now: float) -> None:
        """Record the end of a probe: an empty reason means that the tier answered."""
        self._probing = False
        if self._began_in_service:
            if self.serves:
                self._probe_at = now + CHECK_S
            if reason:
                self.failed(reason, now, whole=True)
            return
        if not reason:
            self.reason = ""
            self._failures = FAILURES - 1  # the next failure takes it out again
            self._recent.clear()
            self._probe_at = now + CHECK_S
            return
        self.reason = reason
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        self._probe_at = now + self._wait_s
