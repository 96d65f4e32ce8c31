"""The document of `[app] apply_file`: applied at every start, on SIGHUP, and when the file changes.

A mounted file is part of how a system is deployed, and a mistake in it must not take down what worked before: the
records of the last good file stay in force, and the log, a fact and a metric say what is wrong. The one exception is a
database in which nobody ever said anything: there is nothing to fall back to, tenants would run without their quotas,
and whoever deploys for the first time is looking. Then the start fails with a sentence.
"""

import asyncio
import os
import stat
import time
from hashlib import sha256
from uuid import uuid4

import structlog

from app.errors import Invalid, LarderError, StoreUnavailable
from app.observe.facts import FactHub
from app.schemas.apply import ApplyPut
from app.services.apply import Apply
from app.services.callers import Caller
from app.services.owners import BOOT
from app.store import generations
from app.store.database import Database

POLL_S = 2.0
AGAIN_S = 30.0
"""What may become right without a new file (other owners, floors, the database) is tried again this often."""
MOST_FAULTS = 50
"""Of a file, in one message."""


class BadFile(Exception):
    """The file cannot be applied, and nothing ever was: a sentence."""


class BootFile:
    """Applies the file."""

    def __init__(
        self, path: str, prune: bool, limit_bytes: int, apply: Apply, database: Database, hub: FactHub
    ) -> None:
        self.path = path
        self.in_force = True
        """What the file says is applied; also when there is no file to apply."""
        self.refused = 0
        """Times that it could not be, since the process started."""
        self._prune = prune
        self._limit_bytes = limit_bytes
        self._apply = apply
        self._database = database
        self._hub = hub
        self._nudged = asyncio.Event()
        self._started = False
        self._looked: tuple[int, ...] | None = None
        self._digest = ""
        self._final = False
        """Only another file can help."""
        self._tried_at = 0.0
        self._log = structlog.get_logger()

    def nudge(self) -> None:
        """Apply it again now, changed or not."""
        self._nudged.set()

    async def start(self) -> None:
        """Apply it, at the first call. Raises BadFile (when nothing was ever applied here), StoreUnavailable."""
        if not self.path or self._started:
            return
        self._started = True
        async with self._database.read() as session:
            untouched = not any((await generations.heads(session)).values())
        fault = await self._try()
        if fault and untouched:
            raise BadFile(f"{fault}; the database is new, so there is nothing to go on with")

    async def run(self) -> None:
        """Until cancelled."""
        if not self.path:
            await asyncio.Event().wait()
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._nudged.wait()
            except TimeoutError:
                if not await self._is_due():
                    continue
            else:
                self._digest = ""
            self._nudged.clear()
            await self._try()

    async def _is_due(self) -> bool:
        looked = await asyncio.to_thread(_look, self.path)
        if looked != self._looked:
            return True
        return not self.in_force and not self._final and time.monotonic() - self._tried_at >= AGAIN_S

    async def _try(self) -> str:
        """Gives what is wrong, empty when it was applied."""
        self._tried_at = time.monotonic()
        self._looked = await asyncio.to_thread(_look, self.path)
        try:
            text = await asyncio.to_thread(_read, self.path, self._limit_bytes)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            return self._wrong(f"cannot be read: {reason or error}", final=False)
        digest = sha256(text.encode()).hexdigest()
        if self.in_force and digest == self._digest:
            return ""  # touched, not changed
        by = Caller(request_id=uuid4().hex, actor=BOOT)
        try:
            answer = await self._apply.apply(ApplyPut(document=text, prune=self._prune), by, assumed=BOOT)
        except LarderError as error:
            final = isinstance(error, Invalid)
            if isinstance(error, StoreUnavailable):
                self._looked = None  # nothing is wrong with the file
            return self._wrong(_every(error), final=final)
        self._digest, self.in_force = digest, True
        counts = {name: getattr(answer, name) for name in ("created", "updated", "deleted", "unchanged")}
        self._log.info("apply_file.applied", file=self.path, **counts)
        self._hub.publish("apply_file.applied", file=self.path, **counts)
        return ""

    def _wrong(self, reason: str, *, final: bool) -> str:
        self.in_force, self._final, self._digest = False, final, ""
        self.refused += 1
        self._log.error("apply_file.refused", file=self.path, reason=reason)
        self._hub.publish("apply_file.refused", file=self.path, reason=reason)
        return f"apply_file {self.path}: {reason}"


def _every(error: LarderError) -> str:
    """All that is wrong: who mends the file need not start once more for each fault."""
    if len(error.errors) < 2:
        return error.message
    told = [f"{fault.path}: {fault.message}" for fault in error.errors[:MOST_FAULTS]]
    more = len(error.errors) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")


def _look(path: str) -> tuple[int, ...] | None:
    """What changes with the file; a mounted ConfigMap is a link that is pointed elsewhere."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: str, limit_bytes: int) -> str:
    """Raises OSError, UnicodeDecodeError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is not a file")
        if found.st_size > limit_bytes:
            raise OSError(0, f"it has {found.st_size} bytes, more than apply_limit_bytes, {limit_bytes}")
        return file.read(limit_bytes).decode()
