"""Get, put and patch of records with a name, which callers of all tenants set."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from app.ingest.fleet import Fleet
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.merge import patched
from app.services.base.preconditions import ANY, Precondition
from app.services.base.principals import Principal
from app.services.records import owners
from app.services.records.progress import RecordProgress
from app.services.records.record_types import PushedType, RecordType, Values
from app.store.base.database import Database
from app.store.base.declarative import Base
from dataplane.protocol.control.snapshots import SnapshotType

R = TypeVar("R", bound=Base)
P = TypeVar("P", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)


class NamedRecords(ABC, Generic[R, P, A]):
    """A put of an identical record changes nothing."""

    _type: ClassVar[RecordType[Any]]
    _resolve: Callable[[str, P], Values]
    """Returns the columns of a checked PUT. Raises Invalid."""
    _pushed: ClassVar[tuple[SnapshotType, ...]] = ()
    """The type, if nodes receive its records."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    @abstractmethod
    def answers(self, rows: Sequence[R]) -> list[A]:
        """Return records with what the nodes report about them."""

    async def get(self, name: str) -> A:
        """Return the record. Raises Invalid, NotFound."""
        checks.pin_name(name)
        return self.answers([await self._type.read(self._database, name)])[0]

    async def put(
        self,
        name: str,
        intent: P,
        by: Principal,
        expected: Precondition = ANY,
        wait_s: float = 0.0,
        *,
        dry_run: bool = False,
    ) -> tuple[A, bool]:
        """Store the record unless it is a dry run. Return it and whether it is new. Raises Invalid, Forbidden,
        Conflict, PreconditionFailed, PreconditionRequired."""
        checks.pin_name(name)
        values = self._resolve(name, intent)
        async with self._changes.begin(by, *self._pushed, dry_run=dry_run) as change:
            before = await change.session.get(self._type.row, name)
            self._type.check_state(expected, name, before)
            await self._check(change, name, before, values)
            row = self._type.write(change, name, before, values)
        await self._settled(row, wait_s)
        return self.answers([row])[0], before is None

    async def patch(
        self,
        name: str,
        patch: dict[str, Any],
        by: Principal,
        expected: Precondition = ANY,
        wait_s: float = 0.0,
        *,
        dry_run: bool = False,
    ) -> A:
        """Apply a JSON merge patch to the record. Raises what `put` raises, and NotFound."""
        checks.pin_name(name)
        async with self._changes.begin(by, *self._pushed, dry_run=dry_run) as change:
            row = await self._type.existing(change, name, expected)
            intent: Any = patched(self._type.put, self._type.as_put(row), patch)
            values = self._resolve(name, intent)
            await self._check(change, name, row, values)
            row = self._type.write(change, name, row, values)
        await self._settled(row, wait_s)
        return self.answers([row])[0]

    @abstractmethod
    async def _check(self, change: Change, name: str, row: R | None, values: Values) -> None:
        """Check values against the record and against others. Raises Forbidden, Conflict."""

    async def _settled(self, row: R, wait_s: float) -> None:
        """Wait until the nodes that receive the record applied or refused it."""


class PushedRecords(NamedRecords[R, P, A]):
    """Records that nodes receive and that documents may own."""

    _type: ClassVar[PushedType[Any]]

    def __init__(self, database: Database, changes: Changes, progress: RecordProgress, fleet: Fleet) -> None:
        super().__init__(database, changes)
        self._progress = progress
        self._fleet = fleet

    async def _check(self, change: Change, name: str, row: Any, values: Values) -> None:
        owners.check(change.by, None if row is None else row.managed_by, values["managed_by"])

    async def _settled(self, row: Any, wait_s: float) -> None:
        await self._progress.wait(self._type.name, row.generation, wait_s, row.name)
