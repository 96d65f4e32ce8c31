"""Declarative base and shared column types. Times are Unix seconds, sizes are bytes."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite assigns row numbers only in columns of type INTEGER.
RowNumber = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

EMPTY = sa.text("''")
"""Default of optional text. Alembic cannot compare a bare empty string."""
NO_ENTRIES = sa.text("'{}'")
"""Default of a map in a `JsonText`."""


def json_text(value: Any) -> str:
    """Return a value as `JsonText` stores it, in ASCII."""
    return json.dumps(value)


class JsonText(sa.types.TypeDecorator[Any]):
    """JSON in a column of text. PostgreSQL cannot compare the default of a column of its own type for JSON."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else json_text(value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else json.loads(value)


Name = Annotated[str, mapped_column(sa.String(128))]
LongName = Annotated[str, mapped_column(sa.String(256))]
Digest = Annotated[str, mapped_column(sa.String(64))]
Seconds = Annotated[float, mapped_column(sa.Double())]
Labels = Annotated[dict[str, str] | None, mapped_column(sa.JSON(none_as_null=True))]
"""Labels by name. For records: the labels that a node must have, or None for every node."""
Whole = Annotated[int, mapped_column(sa.BigInteger())]
LARGEST_WHOLE = 2**63 - 1


class Base(DeclarativeBase):
    """Base of all rows. Constraint names are the same in both databases, so that migrations can refer to them."""

    metadata = sa.MetaData(naming_convention=NAMING)


class RecordColumns:
    """Columns of every record that operators write."""

    note: Mapped[str] = mapped_column(sa.Text())
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


class RevisedRecord(RecordColumns):
    """Columns of a record that nodes do not receive."""

    revision: Mapped[Whole]
    """Number of changes of the record."""


class PushedRecord(RecordColumns):
    """Columns of a record that nodes receive."""

    managed_by: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Owner of the document that manages the record (see `docs/operate/as-code.md`); empty: none."""
    selector: Mapped[Labels]
    generation: Mapped[Whole] = mapped_column(index=True)
    """Generation that last changed this record. Pushes and sizes read the records that changed since another one."""


def insert(session: AsyncSession, entity: type[Base]) -> Any:
    """Return an INSERT that can say what to do with existing keys."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    return dialect.insert(cast(sa.Table, entity.__table__))


async def upsert(
    session: AsyncSession, entity: type[Base], rows: list[dict[str, Any]], *, added: Sequence[str] = ()
) -> None:
    """Insert rows. For existing keys, add to the columns `added` (numbers of 0 or more; LARGEST_WHOLE is the largest
    sum), or replace all values if there are none."""
    if not rows:
        return
    statement = insert(session, entity)
    table, new = statement.table, statement.excluded
    keys = [column.name for column in table.primary_key]
    largest: Any = sa.literal_column(str(LARGEST_WHOLE))
    sums = {
        name: sa.case((table.c[name] > largest - new[name], largest), else_=table.c[name] + new[name]) for name in added
    }
    changed = sums or {name: new[name] for name in rows[0] if name not in keys}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), rows)
