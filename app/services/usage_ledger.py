"""Keeps the usage ledger: asks nodes for their counters, and writes what is new by the hour.

Nothing is counted twice: what is written says how far each account is counted. What is lost is what a node's process
had not told when it died: at most the time between two readings. While the database is away numbers wait in memory, and
a node forgets an idle account only when what it told of it is written.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from app.errors import LarderError, NodeRefused, StoreUnavailable
from app.ingest.fleet import Fleet, Node
from app.ingest.usage import Waiting
from app.push.operations import Operations
from app.store import usage
from app.store.database import Database
from dataplane.protocol.usage import ReadUsage, UsageRead

MAX_PARTS = 4096
HAND_OVER_S = 30.0
"""After this long without the right to write, though the database answers, another replica has it."""
KEEP_MARKS_S = 86_400.0
"""How long numbers of a node's process before the present one may still come, from another replica."""


def _always() -> bool:
    return True


class UsageLedger:
    """`run` reads and writes for ever; `close` does it once more."""

    def __init__(
        self,
        operations: Operations,
        fleet: Fleet,
        database: Database,
        read_s: float,
        write_s: float,
        is_writing: Callable[[], bool] = _always,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`is_writing`: whether this replica is the one that keeps the ledger."""
        self._operations = operations
        self._fleet = fleet
        self._database = database
        self._read_s = read_s
        self._write_s = write_s
        self._is_writing = is_writing
        self._clock = clock
        self._waiting = Waiting()
        self._whole: dict[str, tuple[str, float]] = {}
        """Epoch and time (the node's) of each node's last whole reading."""
        self._noted: dict[str, tuple[str, float]] = {}
        """The same of what is written."""
        self._tidied: dict[str, str] = {}
        """Epoch of each node whose earlier marks were looked after."""
        self._idle_since: float | None = None
        """Monotonic seconds since when it may not write."""
        self._failures: dict[str, str] = {}
        """What was told of each node, to tell it once."""
        self._log = structlog.get_logger()

    async def run(self) -> None:
        written = time.monotonic()
        while True:
            await asyncio.sleep(self._read_s)
            if not await self._reads():
                continue
            await self.read()
            if time.monotonic() - written >= self._write_s and self._is_writing():
                written = time.monotonic()
                await self.write()

    async def _reads(self) -> bool:
        """Whether nodes are asked now. Nobody may write while the database is away: until it is clear that another
        replica does, whoever wrote last goes on asking, for the hours."""
        now = time.monotonic()
        if self._is_writing():
            self._idle_since = None
            return True
        if self._idle_since is None and not len(self._waiting) and not self._whole:
            return False
        try:
            await self._database.ping()
        except StoreUnavailable:
            self._idle_since = now
            return True
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since < HAND_OVER_S:
            return True
        self._forget()
        return False

    async def close(self, timeout_s: float) -> None:
        """Read and write once more, as far as that can be done in time."""
        if not self._is_writing():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.read()
                await self.write()
        except TimeoutError:
            self._log.warning("usage.not_written", accounts=len(self._waiting), reason="no time was left")

    async def read(self) -> None:
        """Ask every connected node. One that does not answer is asked again the next time."""
        nodes = self._fleet.connected()
        failures = await asyncio.gather(*map(self._read_node, nodes))
        for node, failure in zip(nodes, failures, strict=True):
            if failure and self._failures.get(node.name) != failure:
                self._log.warning("usage.not_read", node=node.name, reason=failure)
        self._failures = {node.name: failure for node, failure in zip(nodes, failures, strict=True)}

    async def _read_node(self, node: Node) -> str:
        """Empty, or why the node could not be read to the end; what it told until then is kept."""
        name, epoch = node.name, node.epoch
        noted_epoch, noted = self._noted.get(name, ("", 0.0))
        self._waiting.begin(name)
        at, after, wrong = 0.0, 0, 0
        try:
            for _ in range(MAX_PARTS):
                part = await self._part(node, noted if noted_epoch == epoch else 0.0, after)
                if node.epoch != epoch:
                    return "it is another process meanwhile"
                at = at or part.at
                wrong += self._waiting.take(name, epoch, part.accounts, self._clock())
                if not part.next:
                    break
                if part.next <= after:
                    raise NodeRefused(f"it goes in circles: after account {after} it names {part.next}")
                after = part.next
            else:
                raise NodeRefused(f"it told {MAX_PARTS} parts without an end")
        except LarderError as error:
            return error.message
        self._waiting.end(name)
        self._whole[name] = epoch, at
        return f"{wrong} accounts with numbers or names that cannot be" if wrong else ""

    async def _part(self, node: Node, noted: float, after: int) -> UsageRead:
        return await self._operations.ask(node, lambda nonce: ReadUsage(nonce, noted, after), UsageRead)

    async def write(self) -> None:
        """Write what waits; while the database is away it waits on."""
        whole, told = dict(self._whole), self._waiting.out()
        written = False
        try:
            if told:
                async with self._database.write() as session:
                    await usage.add(session, told)
                    for name, (epoch, _) in whole.items():
                        if self._tidied.get(name) != epoch:
                            await usage.forget_epochs(session, name, epoch, self._clock() - KEEP_MARKS_S)
            written = True
        except StoreUnavailable as error:
            self._log.warning("usage.waits", accounts=len(told), reason=error.message)
        finally:
            if not written:
                self._waiting.back(told)
        if written:
            self._noted = whole
            if told:
                self._tidied = {name: epoch for name, (epoch, _) in whole.items()}

    def _forget(self) -> None:
        """Another replica keeps the ledger: it reads everything itself, from where the marks are."""
        self._idle_since = None
        self._waiting.forget()
        self._whole.clear()
        self._noted.clear()
