"""Keyset pagination. A page begins after the last row of the previous page, so concurrent inserts and deletes do not
shift rows. A cursor holds the sort, the last row's sort value and its key. It is opaque to callers, and is
validated."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.base import ExecutableOption

from app.errors import Invalid
from app.schemas.base.listing import PageRequest
from app.store.base import cursors
from app.store.base.declarative import Base

R = TypeVar("R", bound=Base)
T = TypeVar("T")
Expression = sa.SQLColumnExpression[Any]
LAST = (1 << 63) - 1
"""Sort value of a missing number: after all others."""


@dataclass(frozen=True)
class ListPage(Generic[T]):
    rows: Sequence[T]
    total: int
    """Number of matching rows on all pages."""
    next_cursor: str
    """Cursor of the next page; empty on the last page."""


class _Cursor(msgspec.Struct, array_like=True):
    sort: str
    value: int | float | str
    key: int | str


async def page(
    session: AsyncSession,
    entity: type[R],
    sortable: Mapping[str, Expression],
    page_request: PageRequest,
    *where: sa.ColumnElement[bool],
    options: Sequence[ExecutableOption] = (),
) -> ListPage[R]:
    """Return one page of an entity's rows, sorted by primary key by default. Raise Invalid.

    `sortable` maps each sort field to an expression that is never NULL. `options` select the columns to load.
    """
    key = getattr(entity, sa.inspect(entity).primary_key[0].name)
    field, descending = _sort(page_request, sortable)
    value = sortable[field] if field else key
    matching = sa.and_(sa.true(), *where)
    query: Any = sa.select(entity, value.label("sorted_by")).options(*options).where(matching)
    if page_request.cursor:
        cursor = _read(page_request.cursor, page_request.sort)
        if not _fits(cursor.value, value) or not _fits(cursor.key, key):
            raise Invalid.at("cursor", "expected next_cursor of a page of this list, with the same sort")
        query = query.where(_after(value, key, cursor, descending))
    order = (value.desc(), key.desc()) if descending else (value.asc(), key.asc())
    found = (await session.execute(query.order_by(*order).limit(page_request.limit + 1))).all()
    total = await session.scalar(sa.select(sa.func.count()).select_from(entity).where(matching))
    rows = [row[0] for row in found[: page_request.limit]]
    more = len(found) > page_request.limit
    last = found[page_request.limit - 1] if more else None
    next_cursor = "" if last is None else cursors.write(_Cursor(page_request.sort, last[1], getattr(last[0], key.key)))
    return ListPage(rows, total or 0, next_cursor)


def sortable(entity: type[Base], names: str, **instead: Expression) -> dict[str, Expression]:
    """Return the columns of these names, separated by blanks, as sort fields. `instead` holds expressions for columns
    that may be NULL."""
    return {name: instead[name] if name in instead else getattr(entity, name) for name in names.split()}


def matching(
    entity: type[Base], filters: Mapping[str, Any], salts: Collection[str] | None = None
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of filters, which are named as columns; None matches everything. `salts` limits the rows to
    those of tenants."""
    where = [getattr(entity, name) == value for name, value in filters.items() if value is not None]
    return where if salts is None else [*where, cast(Any, entity).tenant.in_(salts)]


def page_of(
    items: Iterable[T], key: Callable[[T], str], sortable: Mapping[str, Callable[[T], Any]], page_request: PageRequest
) -> ListPage[T]:
    """Return one page of items that are not in a table. A missing number sorts as LAST. Raise Invalid."""
    field, descending = _sort(page_request, sortable)
    value = sortable[field] if field else key

    def place(item: T) -> tuple[Any, str]:
        found = value(item)
        return LAST if found is None else found, key(item)

    ordered = sorted(items, key=place, reverse=descending)
    total, rest = len(ordered), ordered
    if page_request.cursor:
        cursor = _read(page_request.cursor, page_request.sort)
        last = (cursor.value, str(cursor.key))
        try:
            rest = [item for item in ordered if (place(item) < last if descending else place(item) > last)]
        except TypeError:
            raise Invalid.at("cursor", "expected next_cursor of a page of this list") from None
    rows = rest[: page_request.limit]
    next_cursor = cursors.write(_Cursor(page_request.sort, *place(rows[-1]))) if len(rest) > page_request.limit else ""
    return ListPage(rows, total, next_cursor)


def _sort(page_request: PageRequest, sortable: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the sort field, and whether the order is descending. Raise Invalid."""
    field, descending = page_request.sort.removeprefix("-"), page_request.sort.startswith("-")
    if field and field not in sortable:
        raise Invalid.at(
            "sort", f"expected one of {', '.join(sortable)}, with - in front for descending, got {field[:40]!r}"
        )
    return field, descending


def _after(value: Expression, key: Expression, cursor: _Cursor, descending: bool) -> sa.ColumnElement[bool]:
    beyond = value < cursor.value if descending else value > cursor.value
    later = key < cursor.key if descending else key > cursor.key
    return sa.or_(beyond, sa.and_(value == cursor.value, later))


def _read(text: str, sort: str) -> _Cursor:
    try:
        cursor = cursors.read(text, _Cursor)
    except cursors.CursorError:
        raise Invalid.at("cursor", "expected next_cursor of a page of this list") from None
    if cursor.sort != sort:
        raise Invalid.at("cursor", "expected next_cursor of a page of this list, with the same sort")
    return cursor


def _fits(value: int | float | str, expression: Expression) -> bool:
    """Return whether the database can compare a value with an expression."""
    kind = cast(sa.ColumnElement[Any], expression).type.python_type
    if isinstance(value, str) or kind is str:
        return isinstance(value, str) and kind is str and "\0" not in value
    if isinstance(value, int):
        return abs(value) <= LAST
    return kind is float and math.isfinite(value)
