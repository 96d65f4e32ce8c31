"""The service of a type of records: get, page, put, patch and delete. Methods that a type replaces are its rules."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Generic, TypeVar, cast

import msgspec

from app.ingest.fleet import Fleet
from app.schemas.base.listing import PageRequest
from app.schemas.base.status import RecordStatus
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.merge import patched
from app.services.base.preconditions import ANY, Precondition
from app.services.base.principals import PLANE, Principal
from app.services.records import owners
from app.services.records.progress import RecordProgress
from app.services.records.record_types import PushedType, RecordType, Values, checked
from app.store.base.database import Database
from app.store.base.declarative import Base
from dataplane.protocol.control.snapshots import SnapshotType

S = TypeVar("S", bound="RecordService[Any, Any, Any]")
R = TypeVar("R", bound=Base)
P = TypeVar("P", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)


class RecordService(Generic[R, P, A]):
    """A put of an identical record changes nothing. A caller who is limited to tenants sees and changes only records of
    these tenants."""

    kind: ClassVar[RecordType[Any]]
    _locks: ClassVar[tuple[SnapshotType, ...]] = ()
    """Types whose lock a change holds, if nodes do not receive the records."""

    def __init__(self, database: Database, changes: Changes, progress: RecordProgress, fleet: Fleet) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet

    # Rules of a type

    async def _columns(self, name: str, intent: P, by: Principal) -> Values:
        """Return the columns of a checked PUT, given the name in the path, and what `_store` needs. Raises Invalid with
        every fault found."""
        faults = checks.Faults()
        values = checked(msgspec.structs.asdict(intent), faults)
        if self.kind.key == "tenant":
            values["tenant"] = faults.check("tenant", lambda: checks.new_tenant(name))
        faults.stop()
        return values

    async def _patched(self, row: R, patch: dict[str, Any], change: Change) -> Values:
        """Return the columns of a record with a JSON merge patch. Raises Invalid with every fault found."""
        intent: Any = patched(self.kind.put, self.kind.as_put(row), patch)
        return await self._columns(self.kind.shown(getattr(row, self.kind.key)), intent, change.by)

    async def _store(self, change: Change, key: str, row: R | None, values: Values) -> R:
        """Check values against the record and against others, and write them. Raises Forbidden, Conflict."""
        written: R = self.kind.write(change, key, row, values)
        return written

    async def remove(self, change: Change, row: R) -> None:
        """Delete a record, within a change of its type. Raises Forbidden, Conflict."""
        await self.kind.remove(change, row)

    def answers(self, rows: Sequence[R], by: Principal = PLANE) -> list[A]:
        """Return records with what the nodes report about them, as the caller may see them."""
        answer: Any = self.kind.answer
        return [answer(**self.kind.described(row)) for row in rows]

    def _list_fields(self, filters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a list beside its items."""
        return {}

    def _deletion(self, row: R, change: Change) -> msgspec.Struct | None:
        """Return the answer to a deletion, before it is done."""
        return None

    # The operations

    async def get(self, name: str, by: Principal = PLANE) -> A:
        """Return the record. Raises Invalid, Forbidden, NotFound."""
        key = self._key(name, by)
        return self.answers([self._visible(key, await self._database.row(self.kind.row, key), by)], by)[0]

    async def page(self, page_request: PageRequest, filters: Mapping[str, Any], by: Principal) -> Any:
        """Return a page of the records that the caller may see. Raises Invalid."""
        salts = by.salts if self.kind.is_of_tenant else None
        page = await self.kind.page(self._database, page_request, filters, salts)
        items = self.answers(page.rows, by)
        return self.kind.listing(
            items=items, total=page.total, next_cursor=page.next_cursor, **self._list_fields(filters)
        )

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
        Conflict, PreconditionFailed, PreconditionRequired, and what the rules of the type raise."""
        if self.kind.key == "name":
            checks.pin_name(name)
        values = await self._columns(name, intent, by)
        if self.kind.is_of_tenant:
            by.check_salt(values["tenant"])
        key = values.get(self.kind.key, name)
        async with self._begin(by, dry_run=dry_run) as change:
            before = await change.session.get(self.kind.row, key)
            if before is not None and not self._is_visible(before, by):
                raise checks.taken(self.kind.noun, name)
            self.kind.check_state(expected, key, before)
            row = await self.write(change, key, before, values)
        return await self.settled(row, 0.0 if dry_run else wait_s, by), before is None

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
        key = self._key(name, by)
        async with self._begin(by, dry_run=dry_run) as change:
            row = await self._existing(change, key, expected)
            row = await self.write(change, key, row, await self._patched(row, patch, change))
        return await self.settled(row, 0.0 if dry_run else wait_s, by)

    async def delete(
        self, name: str, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> msgspec.Struct | None:
        """Delete the record. Raises Invalid, Forbidden, NotFound, PreconditionFailed, PreconditionRequired, and
        Conflict."""
        key = self._key(name, by)
        async with self._begin(by) as change:
            row = await self._existing(change, key, expected)
            answer = self._deletion(row, change)
            await self.remove(change, row)
        if isinstance(self.kind, PushedType):
            await self._progress.wait(self.kind.name, change.generations[self.kind.name], wait_s)
        return answer

    async def write(self, change: Change, key: str, row: R | None, values: Values) -> R:
        """Write checked values to a record, within a change of its type. Raises Forbidden, Conflict."""
        if "managed_by" in values:
            owners.check(change.by, getattr(row, "managed_by", None), values["managed_by"])
        return await self._store(change, key, row, values)

    async def settled(self, row: Any, wait_s: float, by: Principal) -> A:
        """Return a record after the nodes that receive it applied or refused it, or after `wait_s` seconds."""
        if isinstance(self.kind, PushedType):
            tier = row.name if self.kind.name == "tiers" else ""
            await self._progress.wait(self.kind.name, row.generation, wait_s, tier)
        return self.answers([row], by)[0]

    def _begin(self, by: Principal, *, dry_run: bool = False) -> AbstractAsyncContextManager[Change]:
        locks = (self.kind.name,) if isinstance(self.kind, PushedType) else self._locks
        return self._changes.begin(by, *locks, dry_run=dry_run)

    def _key(self, name: str, by: Principal) -> str:
        """Return the key of the record that a path names. Raises Invalid, Forbidden."""
        if self.kind.key == "name":
            checks.pin_name(name)
            return name
        salt = checks.tenant_in_path(name)
        by.check_salt(salt)
        return salt

    def _is_visible(self, row: Any, by: Principal) -> bool:
        return not self.kind.is_of_tenant or by.sees(row.tenant)

    def _visible(self, key: str, row: R | None, by: Principal) -> R:
        """Return a record that the caller may see. Raises NotFound, also for one that the caller may not see."""
        if row is None or not self._is_visible(row, by):
            raise self.kind.missing(key)
        return row

    async def _existing(self, change: Change, key: str, expected: Precondition) -> R:
        """Return a record that the caller may change. Raises NotFound, PreconditionFailed, PreconditionRequired."""
        row = self._visible(key, await change.session.get(self.kind.row, key), change.by)
        self.kind.check_state(expected, key, row)
        return row

    def _status(self, row: Any, by: Principal) -> RecordStatus:
        """Return how far nodes are with a record that they receive."""
        assert isinstance(self.kind, PushedType)
        return self._progress.status(
            self.kind.name,
            row.generation,
            name=self.kind.shown(getattr(row, self.kind.key)),
            selector=row.selector,
            since=row.updated_at,
            whole=by.salts is None,
        )


class RecordServices:
    """The services of all types of records."""

    def __init__(
        self,
        database: Database,
        changes: Changes,
        progress: RecordProgress,
        fleet: Fleet,
        services: Sequence[RecordService[Any, Any, Any]],
    ) -> None:
        """`services`: those that need more than these parts."""
        self._parts = (database, changes, progress, fleet)
        self._services = {type(service): service for service in services}

    def of(self, service: type[S]) -> S:
        """Return the service of a type, which is made when it is first used."""
        if service not in self._services:
            self._services[service] = service(*self._parts)
        return cast("S", self._services[service])
