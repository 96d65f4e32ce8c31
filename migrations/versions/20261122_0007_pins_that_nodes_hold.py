"""Which pins hold blocks on which node, so that a pin that lost them over a restart is noticed.

Revision: 0007; after: 0006.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "held_pins",
        sa.Column("node", sa.String(length=128), nullable=False),
        sa.Column("pin", sa.String(length=128), nullable=False),
        sa.Column("keys_digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("node", "pin", name=op.f("pk_held_pins")),
    )


def downgrade() -> None:
    op.drop_table("held_pins")
