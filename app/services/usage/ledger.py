"""Keeps the usage ledger: reads the counters of nodes, and writes their increase by the hour.

Nothing is counted twice: each write also records up to which value each account has been counted. A node process that
dies loses at most the usage since the last reading. While the database is unavailable, counts are kept in memory, and a
node forgets an idle account only after its reported usage was written.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from app.errors import LarderError, NodeRefused, StoreUnavailable
from app.ingest.fleet import Fleet, FleetNode
from app.ingest.usage import PendingUsage
from app.push.node_requests import NodeRequests
from app.store.base.database import Database
from app.store.usage import ledger
from dataplane.protocol.usage import ReadUsage, UsageRead

MAX_PARTS = 4096
TAKEOVER_AFTER_S = 30.0
"""Seconds without the right to write, although the database answers, after which another manager is assumed to have
it."""
KEEP_POSITIONS_S = 86_400.0
"""Seconds for which counts of a node's previous process may still arrive from another manager."""


class UsageLedger:
    """`run` reads and writes forever; `read_last` and `write_last` do both once more, at a stop."""

    def __init__(
        self,
        node_requests: NodeRequests,
        fleet: Fleet,
        database: Database,
        read_s: float,
        write_s: float,
        is_writing: Callable[[], bool],
    ) -> None:
        """`is_writing` returns whether this manager keeps the ledger."""
        self._node_requests = node_requests
        self._fleet = fleet
        self._database = database
        self._read_s = read_s
        self._write_s = write_s
        self._is_writing = is_writing
        self._pending = PendingUsage()
        self._last_read: dict[str, tuple[str, float]] = {}
        """Epoch and time (by the node's clock) of each node's last complete reading."""
        self._last_written: dict[str, tuple[str, float]] = {}
        """Epoch and time of each node's last written reading."""
        self._tidied: dict[str, str] = {}
        """Epoch of each node whose earlier marks were deleted."""
        self._idle_since: float | None = None
        """Monotonic seconds since which this manager may not write."""
        self._failures: dict[str, str] = {}
        """Last failure of each node, so that each is logged once."""
        self._log = structlog.get_logger()

    async def run(self) -> None:
        written = time.monotonic()
        while True:
            await asyncio.sleep(self._read_s)
            if not await self._should_read():
                continue
            await self.read()
            if time.monotonic() - written >= self._write_s and self._is_writing():
                written = time.monotonic()
                await self.write()

    async def _should_read(self) -> bool:
        """Return whether to read nodes now. While the database is unavailable, no manager may write; until another
        manager is known to, the last writer continues to read, so that usage is assigned to the right hours."""
        now = time.monotonic()
        if self._is_writing():
            self._idle_since = None
            return True
        if self._idle_since is None and not len(self._pending) and not self._last_read:
            return False
        try:
            await self._database.ping()
        except StoreUnavailable:
            self._idle_since = now
            return True
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since < TAKEOVER_AFTER_S:
            return True
        self._forget()
        return False

    async def read_last(self, within_s: float) -> None:
        """Read once more, before the last `write`. What nodes do not answer in time is read by the next manager."""
        if self._is_writing():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.read(), within_s)

    async def write_last(self) -> None:
        """Write once more, if this manager keeps the ledger."""
        if self._is_writing():
            await self.write()

    async def read(self) -> None:
        """Read every connected node. A node that does not answer is read again the next time."""
        nodes = self._fleet.connected()
        failures = await asyncio.gather(*map(self._read_node, nodes))
        for node, failure in zip(nodes, failures, strict=True):
            if failure and self._failures.get(node.name) != failure:
                self._log.warning("usage.not_read", node=node.name, reason=failure)
        self._failures = {node.name: failure for node, failure in zip(nodes, failures, strict=True)}

    async def _read_node(self, node: FleetNode) -> str:
        """Return an empty string, or why the node could not be read completely; the parts read until then are kept."""
        name, epoch = node.name, node.epoch
        noted_epoch, noted = self._last_written.get(name, ("", 0.0))
        self._pending.begin(name)
        at, after, invalid = 0.0, 0, 0
        try:
            for _ in range(MAX_PARTS):
                question = ReadUsage("", noted if noted_epoch == epoch else 0.0, after)
                part = await self._node_requests.ask(node, question, UsageRead)
                if node.epoch != epoch:
                    return "another process replaced it during the reading"
                at = at or part.at
                invalid += self._pending.take(name, epoch, part.accounts, time.time())
                if not part.next:
                    break
                if part.next <= after:
                    raise NodeRefused(f"expected an account after {after}, got {part.next}")
                after = part.next
            else:
                raise NodeRefused(f"its report did not end after {MAX_PARTS} parts")
        except LarderError as error:
            return error.message
        self._pending.end(name)
        self._last_read[name] = epoch, at
        return f"{invalid} accounts with invalid numbers or names" if invalid else ""

    async def write(self) -> None:
        """Write the pending counts; they stay pending while the database is unavailable."""
        complete_reads, reports = dict(self._last_read), self._pending.take_all()
        written = False
        try:
            if reports:
                async with self._database.write() as session:
                    await ledger.add(session, reports)
                    for name, (epoch, _) in complete_reads.items():
                        if self._tidied.get(name) != epoch:
                            await ledger.forget_epochs(session, name, epoch, time.time() - KEEP_POSITIONS_S)
            written = True
        except StoreUnavailable as error:
            self._log.warning("usage.postponed", accounts=len(reports), reason=error.message)
        finally:
            if not written:
                self._pending.put_back(reports)
        if written:
            self._last_written = complete_reads
            if reports:
                self._tidied = {name: epoch for name, (epoch, _) in complete_reads.items()}

    def _forget(self) -> None:
        """Discard the pending counts: another manager keeps the ledger and reads everything itself, starting at the
        marks."""
        self._idle_since = None
        self._pending.forget()
        self._last_read.clear()
        self._last_written.clear()
