"""Which of the management planes that share a database pushes to nodes: this one, or another.

One at a time, by the database's claim. Every step that tells a node what to hold asks `pushing` first, and the answer
is no once the lease was not confirmed in time: the one that was cut off has stopped before its successor begins. Should
a snapshot be on its way all the same (a process that was stopped between the question and the socket), it does no harm:

- a node refuses a generation older than the one in force, and takes the one in force again as what it is;
- a generation is one state of the database for ever, so two senders of the same number send the same bytes;
- answers find their question by its nonce, and only who asked writes down what was answered.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from app.errors import StoreUnavailable
from app.store.claim import LEASE_S, Claim

CHECK_S = 0.5
"""How often the right is confirmed, or asked for."""


class Lead:
    """Keeps trying; `turned(pushing, reason)` is called when this process begins or stops."""

    def __init__(self, claim: Claim, clock: Callable[[], float] = time.monotonic) -> None:
        self._claim = claim
        self._clock = clock
        self._held = False
        self._from = 0.0
        self._until = 0.0
        self._leading: bool | None = None
        """As it was last told."""
        self.latest = False
        """This process leads, or led last as far as it knows: for what one must do, and rather two than nobody."""
        self.term = 0
        """Counts the times that this process began: what was known in an earlier one may be outdated."""
        self.turned: Callable[[bool, str], None] = lambda pushing, reason: None
        self._log = structlog.get_logger()

    @property
    def pushing(self) -> bool:
        """Whether a node may be told now what to hold."""
        return self._leading is True and self._from <= self._clock() < self._until

    @property
    def holds(self) -> bool:
        """Whether the right is this process's, though it may not be usable yet, or not until it is confirmed again."""
        return self._held

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.step()
            now = self._clock()
            await asyncio.sleep(
                self._from - now if self._held and now < self._from < now + CHECK_S else CHECK_S
            )

    async def step(self) -> None:
        """Confirm what is held, or try to get it; raises nothing."""
        asked = self._clock()
        reason = "another replica pushes"
        try:
            if self._held:
                await self._claim.confirm()
            else:
                wait_s = await self._claim.take()
                self._held = self.latest = wait_s is not None
                self._from = self._clock() + (wait_s or 0.0)
            if self._held:
                self._until = asked + LEASE_S
        except StoreUnavailable as error:
            self._held, self._until, reason = False, 0.0, error.message
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        if self._held and self._clock() < self._from:
            return
        if self._held == self._leading:
            return
        self._leading = self._held
        self.term += self._held
        if self._held:
            self._log.info("replica.leading", term=self.term)
        else:
            self._log.info("replica.following", reason=reason)
        self.turned(self._held, "" if self._held else reason)

    async def stop(self) -> None:
        """Stop pushing, then let others."""
        self._held, self._until = False, 0.0
        await self._claim.release()
