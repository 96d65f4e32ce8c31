"""Leader election: whether this manager, or another one that shares the database, pushes to nodes.

There is one leader at a time, by the database's leader lock. Every step that sends a node its wanted state checks
`pushing` first, which is False once the lease was not confirmed in time. A leader that was cut off has therefore
stopped before its successor begins. If a snapshot is still sent (because the process was suspended between the check
and the socket), it does no harm:

- a node refuses a generation older than the one in force, and accepts the one in force again as a repetition;
- a generation is a fixed state of the database, so two senders of the same number send the same bytes;
- answers are matched by nonce, and only the manager that asked records the answer.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from app.errors import StoreUnavailable
from app.store.fleet.leader_lock import LEASE_S, LeaderLock

CHECK_S = 0.5
"""Seconds between confirmations of the lock, or attempts to take it."""


class LeaderElection:
    """Keeps trying to become the leader."""

    def __init__(
        self, claim: LeaderLock, on_election: Callable[[bool, str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`on_election` is called when this process begins or stops to lead, with the reason why it stopped."""
        self._claim = claim
        self._on_election = on_election
        self._clock = clock
        self._holds_lock = False
        self._usable_from = 0.0
        self._usable_until = 0.0
        self._leading: bool | None = None
        """Leadership as last reported through `on_election`."""
        self.latest = False
        """Whether this process leads, or led last as far as it knows. For work better done twice than never."""
        self.term = 0
        """Number of times that this process became the leader. Knowledge from an earlier term may be outdated."""
        self._log = structlog.get_logger()

    @property
    def pushing(self) -> bool:
        """Whether this process may push to nodes now."""
        return self._leading is True and self._usable_from <= self._clock() < self._usable_until

    @property
    def holds(self) -> bool:
        """Whether this process holds the lock. It may have to wait before using it, or to confirm it again."""
        return self._holds_lock

    async def run(self) -> None:
        """Run the election forever."""
        while True:
            await self.step()
            now = self._clock()
            await asyncio.sleep(
                self._usable_from - now if self._holds_lock and now < self._usable_from < now + CHECK_S else CHECK_S
            )

    async def step(self) -> None:
        """Confirm the lock if it is held, otherwise try to take it. Raises nothing."""
        started_at = self._clock()
        reason = "another manager pushes"
        try:
            if self._holds_lock:
                await self._claim.confirm()
            else:
                wait_s = await self._claim.take()
                self._holds_lock = self.latest = wait_s is not None
                self._usable_from = self._clock() + (wait_s or 0.0)
            if self._holds_lock:
                self._usable_until = started_at + LEASE_S
        except StoreUnavailable as error:
            self._holds_lock, self._usable_until, reason = False, 0.0, error.message
        self._report(reason)

    def _report(self, reason: str) -> None:
        if self._holds_lock and self._clock() < self._usable_from:
            return
        if self._holds_lock == self._leading:
            return
        self._leading = self._holds_lock
        self.term += self._holds_lock
        if self._holds_lock:
            self._log.info("manager.promoted", term=self.term)
        else:
            self._log.info("manager.demoted", reason=reason)
        self._on_election(self._holds_lock, "" if self._holds_lock else reason)

    async def stop(self) -> None:
        """Stop pushing, then release the lock for other managers."""
        self._holds_lock, self._usable_until = False, 0.0
        await self._claim.release()
