"""The document of `[app] apply_file`: applied at every start, on SIGHUP, and when the file changes.

A mounted file is part of a deployment, and a mistake in it must not take down a working system: the records of the last
good file stay in force, and the log, an event and a metric report the fault. The one exception is a database to which
no record was ever written: there is no state to fall back to, tenants would run without their quotas, and the operator
is watching the first deployment. In that case the start fails with an error message.
"""

import asyncio
import os
import stat
import time
from hashlib import sha256
from uuid import uuid4

import structlog

from app.errors import Invalid, LarderError
from app.observe.catalogue.service import ApplyFileApplied, ApplyFileRefused
from app.observe.events import EventBus
from app.schemas.documents.apply import ApplyPut
from app.services.base.principals import Principal
from app.services.documents.apply import Apply
from app.services.records.owners import BOOT
from app.store.base.database import Database
from app.store.records import generations

POLL_S = 2.0
AGAIN_S = 30.0
"""Seconds between retries of a file whose fault may go away without a change of the file (other owners, floors, the
database)."""
MAX_FAULTS = 50
"""Largest number of a file's faults in one message."""


class StartupDocumentError(Exception):
    """The file cannot be applied, and no document was ever applied. The message is one sentence."""


class StartupDocument:
    """Applies the file."""

    def __init__(
        self, path: str, prune: bool, limit_bytes: int, apply: Apply, database: Database, bus: EventBus
    ) -> None:
        self.path = path
        self.in_force = True
        """Whether the file is applied; also true if there is no file to apply."""
        self.refused = 0
        """Number of failed attempts since the process started."""
        self._prune = prune
        self._limit_bytes = limit_bytes
        self._apply = apply
        self._database = database
        self._bus = bus
        self._nudged = asyncio.Event()
        self._started = False
        self._looked: tuple[int, ...] | None = None
        self._digest = ""
        self._final = False
        """Whether only a changed file can fix the fault."""
        self._tried_at = 0.0
        self._log = structlog.get_logger()

    def trigger(self) -> None:
        """Apply the file again now, even if it has not changed."""
        self._nudged.set()

    async def start(self) -> None:
        """Apply the file at the first call. Raises StartupDocumentError (if no document was ever applied here),
        StoreUnavailable."""
        if not self.path or self._started:
            return
        self._started = True
        async with self._database.read() as session:
            untouched = not any((await generations.heads(session)).values())
        fault = await self._try()
        if fault and untouched:
            raise StartupDocumentError(f"{fault}; the database is new, so there are no earlier records to keep")

    async def run(self) -> None:
        """Watch the file until cancelled."""
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
        """Apply the file, and return the fault; an empty string if it was applied."""
        self._tried_at = time.monotonic()
        self._looked = await asyncio.to_thread(_look, self.path)
        try:
            text = await asyncio.to_thread(_read, self.path, self._limit_bytes)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            return self._refuse(f"cannot be read: {reason or error}", final=False)
        digest = sha256(text.encode()).hexdigest()
        if self.in_force and digest == self._digest:
            return ""  # touched, not changed
        by = Principal(request_id=uuid4().hex, actor=BOOT)
        try:
            answer = await self._apply.apply(ApplyPut(document=text, prune=self._prune), by, assumed=BOOT)
        except LarderError as error:
            return self._refuse(_all_faults(error), final=isinstance(error, Invalid))
        self._digest, self.in_force = digest, True
        counts = {name: getattr(answer, name) for name in ("created", "updated", "deleted", "unchanged")}
        self._log.info("apply_file.applied", file=self.path, **counts)
        self._bus.publish(ApplyFileApplied(self.path, *counts.values()))
        return ""

    def _refuse(self, reason: str, *, final: bool) -> str:
        self.in_force, self._final, self._digest = False, final, ""
        self.refused += 1
        self._log.error("apply_file.refused", file=self.path, reason=reason)
        self._bus.publish(ApplyFileRefused(self.path, reason))
        return f"apply_file {self.path}: {reason}"


def _all_faults(error: LarderError) -> str:
    """Return all faults, so that fixing the file does not take one start per fault."""
    if len(error.errors) < 2:
        return error.message
    messages = [f"{fault.path}: {fault.message}" for fault in error.errors[:MAX_FAULTS]]
    omitted = len(error.errors) - len(messages)
    return "; ".join(messages) + (f"; and at least {omitted} more" if omitted else "")


def _look(path: str) -> tuple[int, ...] | None:
    """Return values that change with the file; a mounted ConfigMap is a symbolic link that is replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: str, limit_bytes: int) -> str:
    """Return the text of the file. Raises OSError, UnicodeDecodeError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a file")
        if status.st_size > limit_bytes:
            raise OSError(0, f"it has {status.st_size} bytes, more than apply_limit_bytes, {limit_bytes}")
        return file.read(limit_bytes).decode()
