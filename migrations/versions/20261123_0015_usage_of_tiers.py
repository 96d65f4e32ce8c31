"""The usage ledger counts served bytes, and what tiers hold and serve; what there is was served by memory.

Revision: 0015; after: 0014.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_KEYS = (("node", 128), ("tenant", 128), ("model", 256), ("space", 128), ("tier", 128))
_COUNTED = ("held_kib_s", "served_tokens", "served_bytes")


def _keys() -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String(length), nullable=False) for name, length in _KEYS]


def _counted() -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in _COUNTED]


def upgrade() -> None:
    for table in ("usage", "usage_marks"):
        op.add_column(table, sa.Column("served_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    names = [name for name, _ in _KEYS]
    op.create_table(
        "tier_usage",
        sa.Column("hour", sa.BigInteger(), nullable=False),
        *_keys(),
        *_counted(),
        sa.PrimaryKeyConstraint("hour", *names, name="pk_tier_usage"),
    )
    op.create_table(
        "tier_usage_marks",
        *_keys(),
        sa.Column("epoch", sa.String(128), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        *_counted(),
        sa.PrimaryKeyConstraint(*names, name="pk_tier_usage_marks"),
    )


def downgrade() -> None:
    op.drop_table("tier_usage_marks")
    op.drop_table("tier_usage")
    for table in ("usage_marks", "usage"):
        op.drop_column(table, "served_bytes")
