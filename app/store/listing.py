"""Pages of records by key: a page begins after the last row of the one before, so that rows that come and go meanwhile
shift nothing. A cursor names the sort, the last row's sort value and its key; it is opaque to callers and checked."""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.base import ExecutableOption

from app.errors import FieldError, Invalid
from app.store.base import Base

R = TypeVar("R", bound=Base)
T = TypeVar("T")
Expression = sa.SQLColumnExpression[Any]
LAST = (1 << 63) - 1
"""What a missing number sorts as: after all others."""


@dataclass(frozen=True)
class Wanted:
    """Which page. `sort` is a field's name, with `-` in front for descending; empty: by key."""

    limit: int
    cursor: str = ""
    sort: str = ""


@dataclass(frozen=True)
class Page(Generic[T]):
    rows: Sequence[T]
    total: int
    """Of all pages, with the filters."""
    next_cursor: str
    """Empty when this is the last page."""


class _Cursor(msgspec.Struct, array_like=True):
    sort: str
    value: int | float | str
    key: int | str


async def page(
    session: AsyncSession,
    entity: type[R],
    key: InstrumentedAttribute[Any],
    sortable: Mapping[str, Expression],
    wanted: Wanted,
    *where: sa.ColumnElement[bool],
    options: Sequence[ExecutableOption] = (),
) -> Page[R]:
    """One page of an entity's rows. `sortable` has an expression that is never NULL for each field to sort by;
    `options` say what of a row is loaded. Raises Invalid."""
    field, descending = _sort(wanted, sortable)
    value = sortable[field] if field else key
    matching = sa.and_(sa.true(), *where)
    query: Any = sa.select(entity, value.label("sorted_by")).options(*options).where(matching)
    if wanted.cursor:
        query = query.where(
            _after(
                value, key, _read(wanted.cursor, wanted.sort, isinstance(key.type, sa.Integer)), descending
            )
        )
    order = (value.desc(), key.desc()) if descending else (value.asc(), key.asc())
    found = (await session.execute(query.order_by(*order).limit(wanted.limit + 1))).all()
    total = await session.scalar(sa.select(sa.func.count()).select_from(entity).where(matching))
    rows = [row[0] for row in found[: wanted.limit]]
    more = len(found) > wanted.limit
    last = found[wanted.limit - 1] if more else None
    next_cursor = "" if last is None else _write(wanted.sort, last[1], getattr(last[0], key.key))
    return Page(rows, total or 0, next_cursor)


def page_of(
    items: Iterable[T], key: Callable[[T], str], sortable: Mapping[str, Callable[[T], Any]], wanted: Wanted
) -> Page[T]:
    """The same of what is no table. A missing number sorts as LAST. Raises Invalid."""
    field, descending = _sort(wanted, sortable)
    value = sortable[field] if field else key

    def place(item: T) -> tuple[Any, str]:
        found = value(item)
        return LAST if found is None else found, key(item)

    ordered = sorted(items, key=place, reverse=descending)
    total, rest = len(ordered), ordered
    if wanted.cursor:
        cursor = _read(wanted.cursor, wanted.sort, False)
        last = (cursor.value, str(cursor.key))
        try:
            rest = [item for item in ordered if (place(item) < last if descending else place(item) > last)]
        except TypeError:
            raise _invalid("cursor", "expected next_cursor of a page of this list") from None
    rows = rest[: wanted.limit]
    next_cursor = _write(wanted.sort, *place(rows[-1])) if len(rest) > wanted.limit else ""
    return Page(rows, total, next_cursor)


def _sort(wanted: Wanted, sortable: Mapping[str, Any]) -> tuple[str, bool]:
    """The field, and whether descending. Raises Invalid."""
    field, descending = wanted.sort.removeprefix("-"), wanted.sort.startswith("-")
    if field and field not in sortable:
        raise _invalid(
            "sort",
            f"expected one of {', '.join(sortable)}, with - in front for descending, got {field[:40]!r}",
        )
    return field, descending


def _after(value: Expression, key: Expression, cursor: _Cursor, descending: bool) -> sa.ColumnElement[bool]:
    beyond = value < cursor.value if descending else value > cursor.value
    later = key < cursor.key if descending else key > cursor.key
    return sa.or_(beyond, sa.and_(value == cursor.value, later))


def _write(sort: str, value: Any, key: Any) -> str:
    packed = msgspec.msgpack.encode(_Cursor(sort, value, key))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def _read(text: str, sort: str, numbered: bool) -> _Cursor:
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = msgspec.msgpack.decode(packed, type=_Cursor)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise _invalid("cursor", "expected next_cursor of a page of this list") from None
    small = not isinstance(cursor.key, int) or abs(cursor.key) <= LAST
    text_ok = all("\0" not in part for part in (cursor.key, cursor.value) if isinstance(part, str))
    if cursor.sort != sort or numbered != isinstance(cursor.key, int) or not small or not text_ok:
        raise _invalid("cursor", "expected next_cursor of a page of this list, with the same sort")
    return cursor


def _invalid(name: str, message: str) -> Invalid:
    return Invalid(f"{name}: {message}", [FieldError(name, message)])
