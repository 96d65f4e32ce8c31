"""Types of records, and the operations that all types have in common: find, write, audit, delete.

The fields of a type come from its structs in `app.schemas.records`, so a new field is declared there and in the table,
and nowhere else. CONTRIBUTING.md has the recipe.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, cast, get_args

import msgspec

from app.errors import NotFound
from app.observe.catalogue import PlaneEvent
from app.observe.catalogue.records import RECORD_EVENTS
from app.schemas.base.listing import PageRequest
from app.services.base import checks
from app.services.base.changes import Action, Change
from app.services.base.preconditions import Precondition, etag
from app.services.base.principals import Principal
from app.store.base import listing
from app.store.base.database import Database
from app.store.base.declarative import Base
from app.store.base.listing import ListPage
from dataplane.protocol.control.snapshots import SnapshotType
from dataplane.protocol.salts import shown

R = TypeVar("R", bound=Base)
Values = dict[str, Any]
"""Columns of a record by name."""
_RULES: Mapping[str, Callable[[Any], Any]] = {"managed_by": checks.managed_by, "selector": checks.labels}
"""Rules of fields that mean the same in every type of record."""
_FILTERS: Mapping[str, Callable[[str], str]] = {
    "model": checks.model,
    "managed_by": checks.managed_by,
    "tenant": checks.tenant_in_path,
}
"""Rules of the filters of lists, which return the value of the column."""


@dataclass(frozen=True, kw_only=True)
class RecordType(Generic[R]):
    """A type of record whose ETag is the number of its revisions. Nodes do not receive such records."""

    noun: str
    row: type[R]
    key: Literal["name", "tenant"]
    """Column of the primary key, and field that names a record in a list."""
    sortable: Mapping[str, listing.Expression]
    """Sort fields of its list."""
    put: type[msgspec.Struct]
    """Body of its PUT."""
    answer: type[msgspec.Struct]
    """Answer about a record: fields that are columns, the ETag, and what nodes report."""
    listing: type[msgspec.Struct]
    """Answer of its list."""
    written: tuple[str, ...]
    """Columns that follow from the PUT: all that an audit entry shows."""
    hint: Callable[[str], str] = lambda _key: ""
    """Returns the end of the message about a record that does not exist."""

    def shown(self, key: str) -> str:
        """Return the record's shown name."""
        return shown(key) if self.key == "tenant" else key

    def called(self, key: str) -> str:
        """Return the record's type and name, for messages."""
        return f"{self.noun}{' for tenant' if self.key == 'tenant' else ''} {self.shown(key)!r}"

    def missing(self, key: str) -> NotFound:
        return NotFound(f"there is no {self.called(key)}{self.hint(key)}")

    def audited(self, record: R | Mapping[str, Any]) -> Values:
        """Return the fields that an audit entry and a diff show."""
        return fields(record, self.written)

    def as_put(self, row: R) -> Values:
        """Return the record as the body that would create it."""
        return {name: value for name in self.written if (value := getattr(row, name)) is not None}

    @property
    def is_of_tenant(self) -> bool:
        """Whether a record belongs to a tenant. Others concern all tenants."""
        return "tenant" in (self.key, *self.written)

    def salt(self, record: Mapping[str, Any]) -> str | None:
        """Return the salt of a record's tenant; None if the record concerns all tenants."""
        return record["tenant"] if self.is_of_tenant else None

    def is_own(self, record: Mapping[str, Any], by: Principal) -> bool:
        """Return whether a record is of a tenant that the caller is limited to, or the caller is not limited."""
        salt = self.salt(record)
        return by.salts is None or (salt is not None and by.sees(salt))

    def etag(self, row: R) -> str:
        return etag(getattr(row, self._number))

    @cached_property
    def _answered(self) -> tuple[str, ...]:
        return tuple(name for name in self.answer.__struct_fields__ if name in self.row.__table__.columns)

    def described(self, row: R) -> Values:
        """Return the fields of the answer about a record that follow from the record."""
        return {**fields(row, self._answered), "etag": self.etag(row)}

    async def page(
        self,
        database: Database,
        page_request: PageRequest,
        filters: Mapping[str, Any] = MappingProxyType({}),
        salts: Collection[str] | None = None,
    ) -> ListPage[R]:
        """Return a page of records with these values, optionally only of the tenants `salts`. Raises Invalid."""
        faults = checks.Faults()
        where_equal = {
            name: faults.check(name, partial(_FILTERS.get(name, str), value))
            for name, value in filters.items()
            if value is not None
        }
        faults.stop()
        async with database.read() as session:
            where = listing.matching(self.row, where_equal, salts)
            return await listing.page(session, self.row, self.sortable, page_request, *where)

    def check_state(self, expected: Precondition, key: str, row: R | None) -> None:
        """Raises PreconditionFailed, PreconditionRequired."""
        expected.check(self.called(key), None if row is None else self.etag(row))

    def write(self, change: Change, key: str, row: R | None, values: Mapping[str, Any], **first: Any) -> R:
        """Write values to a record, and audit them if they change it. A new record (row is None) gets the columns
        `first` too."""
        before = None if row is None else self.audited(row)
        if row is None:
            row = self.row(**{self.key: key}, created_at=change.now, **first)
            change.session.add(row)
        for name, value in values.items():
            setattr(row, name, value)
        after = self.audited(row)
        if before != after:
            self._changed(change, key, row, before, after)
        return row

    async def remove(self, change: Change, row: R) -> None:
        """Delete a record."""
        self.note(change, "delete", getattr(row, self.key), self.audited(row), None)
        await change.session.delete(row)

    @property
    def _number(self) -> str:
        """Column of the ETag."""
        return "revision"

    def _changed(self, change: Change, key: str, row: Any, before: Values | None, after: Values) -> None:
        row.revision, row.updated_at = (row.revision or 0) + 1, change.now
        self.note(change, "create" if before is None else "update", key, before, after)

    def note(self, change: Change, action: Action, key: str, before: Values | None, after: Values | None) -> None:
        """Audit the change of a record, and add its event."""
        event = self._event(action, key, after or before or {})
        change.noted(action, self.noun, self.shown(key), before, after, event=event)

    def _event(self, action: Action, key: str, values: Mapping[str, Any]) -> PlaneEvent:
        kind: Any = RECORD_EVENTS[self.noun][get_args(Action).index(action)]
        return cast("PlaneEvent", kind(self.shown(key), *(values[name] for name in kind.__struct_fields__[1:])))


@dataclass(frozen=True, kw_only=True)
class PushedType(RecordType[R]):
    """A type of record that nodes receive, and that documents may contain. Its ETag is the generation that last changed
    the record."""

    name: SnapshotType

    @property
    def _number(self) -> str:
        return "generation"

    def _changed(self, change: Change, key: str, row: Any, before: Values | None, after: Values) -> None:
        row.generation, row.updated_at = change.generations[self.name], change.now
        self.note(change, "create" if before is None else "update", key, before, after)

    def note(self, change: Change, action: Action, key: str, before: Values | None, after: Values | None) -> None:
        values = {**(after or before or {}), "generation": change.generations[self.name]}
        change.made(self.name, action, self.noun, self.shown(key), before, after, self._event(action, key, values))


def defaults(*structs: type[msgspec.Struct]) -> Values:
    """Return the default values of the structs' fields; a later struct replaces those of an earlier one."""
    default_values = {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for struct in structs
        for field in msgspec.structs.fields(struct)
    }
    return {name: value for name, value in default_values.items() if value not in (msgspec.NODEFAULT, msgspec.UNSET)}


def fields(record: Base | Mapping[str, Any], column_names: Iterable[str]) -> Values:
    """Return these columns of a record, with the shown name of its tenant."""
    values = record if isinstance(record, Mapping) else columns(record, column_names)
    return {name: shown(values[name]) if name == "tenant" else values[name] for name in column_names}


def columns(record: object, column_names: Iterable[str]) -> Values:
    """Return these columns of a record as they are."""
    return {name: getattr(record, name) for name in column_names}


def checked(values: Mapping[str, Any], faults: checks.Faults) -> Values:
    """Return the values of fields that are stored as they are given. Text without a rule of its own is checked as a
    note, because not every database stores every character."""

    def rule(name: str, value: Any) -> Any:
        check = _RULES.get(name, checks.note if isinstance(value, str) else None)
        return value if check is None else check(value)

    return {name: faults.check(name, partial(rule, name, value)) for name, value in values.items()}
