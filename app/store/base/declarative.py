"""Declarative base and shared column types. Times are Unix seconds, sizes are bytes."""

from typing import Annotated

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, mapped_column

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

Name = Annotated[str, mapped_column(sa.String(128))]
LongName = Annotated[str, mapped_column(sa.String(256))]
Digest = Annotated[str, mapped_column(sa.String(64))]
Seconds = Annotated[float, mapped_column(sa.Double())]
Labels = Annotated[dict[str, str] | None, mapped_column(sa.JSON(none_as_null=True))]
"""Labels by name. For records: the labels that a node must have, or None for every node."""
Whole = Annotated[int, mapped_column(sa.BigInteger())]


class Base(DeclarativeBase):
    """Base of all rows. Constraint names are the same in both databases, so that migrations can refer to them."""

    metadata = sa.MetaData(naming_convention=NAMING)
