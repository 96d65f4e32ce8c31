"""Tiers, with their generation 0.

Revision: 0013; after: 0012.
"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tiers",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("type", sa.String(128), nullable=False),
        sa.Column("budget_bytes", sa.BigInteger(), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("order", sa.BigInteger(), nullable=False),
        sa.Column("spill", sa.String(128), nullable=False),
        sa.Column("load_deadline_s", sa.Double(), nullable=False),
        sa.Column("max_bytes_in_flight", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("managed_by", sa.String(128), nullable=False),
        sa.Column("selector", sa.JSON(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tiers"),
    )
    generations = sa.table("generations", sa.column("type"), sa.column("generation"), sa.column("changed_at"))
    op.bulk_insert(generations, [{"type": "tiers", "generation": 0, "changed_at": time.time()}])


def downgrade() -> None:
    op.execute("DELETE FROM generations WHERE type = 'tiers'")
    op.drop_table("tiers")
