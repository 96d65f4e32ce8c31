"""Ceilings say which fields have no bound; a field that is left out may not be raised.

Fields that were left out before had no bound, and are now listed as such.

Revision: 0005; after: 0004.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_MAXIMA = ("max_limit_bytes", "max_floor_bytes", "max_pin_budget_bytes", "max_store_rate_bytes", "max_weight")


def upgrade() -> None:
    json = sa.JSON(none_as_null=True)
    op.add_column("ceilings", sa.Column("no_bound", json, nullable=True))
    ceilings = sa.table(
        "ceilings", sa.column("tenant"), sa.column("no_bound", json), *(sa.column(name) for name in _MAXIMA)
    )
    connection = op.get_bind()
    for row in connection.execute(sa.select(ceilings)).mappings().all():
        left_out = [name for name in _MAXIMA if row[name] is None]
        named = sa.update(ceilings).where(ceilings.c.tenant == row["tenant"])
        connection.execute(named.values(no_bound=left_out))


def downgrade() -> None:
    op.drop_column("ceilings", "no_bound")
