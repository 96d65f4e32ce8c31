"""Whole shares of tenants, pins that refresh, policies with their generation 0, and the capacity asked of a node.

Revision: 0002; after: 0001.
"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("floor_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("weight", sa.Double(), nullable=False, server_default="1"),
        sa.Column("pin_budget_bytes", sa.BigInteger(), nullable=True),
        sa.Column("store_rate_bytes", sa.BigInteger(), nullable=True),
        sa.Column("on_exceed", sa.String(length=128), nullable=False, server_default="evict_self"),
        sa.Column("mode", sa.String(length=128), nullable=False, server_default="enforce"),
    ):
        op.add_column("quotas", column)
    op.add_column("pins", sa.Column("refresh_s", sa.Double(), nullable=True))
    op.add_column("nodes", sa.Column("wanted_capacity_bytes", sa.BigInteger(), nullable=True))
    op.create_table(
        "policies",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("algorithm", sa.String(length=128), nullable=False),
        sa.Column("admission", sa.Boolean(), nullable=False),
        sa.Column("admission_idle_s", sa.Double(), nullable=False),
        sa.Column("high_watermark", sa.Double(), nullable=False),
        sa.Column("low_watermark", sa.Double(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_policies")),
    )
    generations = sa.table("generations", sa.column("type"), sa.column("generation"), sa.column("changed_at"))
    op.bulk_insert(generations, [{"type": "policies", "generation": 0, "changed_at": time.time()}])


def downgrade() -> None:
    op.execute("DELETE FROM generations WHERE type = 'policies'")
    op.drop_table("policies")
    op.drop_column("nodes", "wanted_capacity_bytes")
    op.drop_column("pins", "refresh_s")
    for name in ("mode", "on_exceed", "store_rate_bytes", "pin_budget_bytes", "weight", "floor_bytes"):
        op.drop_column("quotas", name)
