"""Get, put and patch of policies and tiers: records with a name, which callers of all tenants set."""

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
from app.services.records.record_types import PushedType, Values
from app.store.base.database import Database
from app.store.base.declarative import Base

R = TypeVar("R", bound=Base)
P = TypeVar("P", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)


class NamedRecords(ABC, Generic[R, P, A]):
    """A put of an identical record changes nothing."""

    _type: ClassVar[PushedType[Any]]
    _resolve: Callable[[str, P], Values]
    """Returns the columns of a checked PUT. Raises Invalid."""

    def __init__(self, database: Database, changes: Changes, progress: RecordProgress, fleet: Fleet) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet

    @abstractmethod
    def answers(self, rows: Sequence[R]) -> list[A]:
        """Return records with what the nodes report about them."""

    async def get(self, name: str) -> A:
        """Return the record. Raises Invalid, NotFound."""
        checks.pin_name(name)
        row = await self._database.row(self._type.row, name)
        if row is None:
            raise self._type.missing(name)
        return self.answers([row])[0]

    async def put(
        self, name: str, intent: P, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> tuple[A, bool]:
        """Store the record, and return it and whether it is new. Raises Invalid, Forbidden, PreconditionFailed,
        PreconditionRequired."""
        checks.pin_name(name)
        values = self._resolve(name, intent)
        async with self._changes.begin(by, self._type.name) as change:
            before = await change.session.get(self._type.row, name)
            self._type.check_state(expected, name, before)
            row = self._write(change, before, values)
        await self._progress.wait(self._type.name, row.generation, wait_s, name)
        return self.answers([row])[0], before is None

    async def patch(
        self, name: str, patch: dict[str, Any], by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> A:
        """Apply a JSON merge patch to the record. Raises what `put` raises, and NotFound."""
        checks.pin_name(name)
        async with self._changes.begin(by, self._type.name) as change:
            row = await self._type.existing(change, name, expected)
            intent: Any = patched(self._type.put, self._type.as_put(row), patch)
            row = self._write(change, row, self._resolve(name, intent))
        await self._progress.wait(self._type.name, row.generation, wait_s, name)
        return self.answers([row])[0]

    def _write(self, change: Change, row: Any, values: Values) -> Any:
        owners.check(change.by, None if row is None else row.managed_by, values["managed_by"])
        return self._type.write(change, values["name"], row, values)
