"""Series are plain rows. The packed points of earlier revisions are dropped: their history begins again.

Revision: 0019; after: 0018.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

FIGURES = """
    capacity_bytes used_bytes ready_bytes reserved_bytes quarantined_bytes pinned_bytes pin_budget_bytes
    committed_bytes padding_bytes free_slot_bytes blocks limit_bytes nodes engines leased_blocks
    gpu_copy_bytes tier_budget_bytes tier_used_bytes tier_waiting_bytes resident_bytes requested_blocks
    hit_blocks stored_blocks evicted_blocks refused_blocks stored_bytes read_bytes evicted_bytes
    evictions_cancelled aborted_blocks invalidated_blocks corrupt_blocks would_refuse_blocks hit_tokens
    tier_hit_tokens tier_hit_bytes tier_spilled_bytes tier_loaded_bytes tier_evicted_blocks acquires
    acquire_us cpu_ms
"""


def upgrade() -> None:
    op.drop_table("series_recent")
    op.drop_table("series")
    op.create_table(
        "series",
        sa.Column("step_s", sa.BigInteger(), nullable=False),
        sa.Column("scope", sa.String(256), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("measured_s", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger()) for name in FIGURES.split()),
        sa.PrimaryKeyConstraint("step_s", "scope", "at", name="pk_series"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("series")
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
