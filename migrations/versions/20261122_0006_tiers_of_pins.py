"""Pins say in which tier their blocks are wanted; those that there are stay in nodes' pools alone.

Revision: 0006; after: 0005.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pins", sa.Column("tier", sa.String(128), nullable=False, server_default="host"))


def downgrade() -> None:
    op.drop_column("pins", "tier")
