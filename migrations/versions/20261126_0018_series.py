"""The management plane keeps series of nodes and tenants; events by name and time, for the marks beside them.

Revision: 0018; after: 0017.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "series",
        sa.Column("scope", sa.String(256), nullable=False),
        sa.Column("step_s", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("points", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "step_s", "start", name="pk_series"),
    )
    op.create_table(
        "series_recent",
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("points", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("at", name="pk_series_recent"),
    )
    op.create_index("ix_events_name_at", "events", ["name", "at"])


def downgrade() -> None:
    op.drop_index("ix_events_name_at", "events")
    op.drop_table("series_recent")
    op.drop_table("series")
