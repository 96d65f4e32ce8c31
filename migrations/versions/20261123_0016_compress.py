"""Tiers can compress; those that there are do not.

Revision: 0016; after: 0015.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tiers", sa.Column("compress", sa.String(128), nullable=False, server_default="none"))


def downgrade() -> None:
    op.drop_column("tiers", "compress")
