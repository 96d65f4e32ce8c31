"""Quotas have floors and limits in tiers; those that there are name no tier.

Revision: 0014; after: 0013.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("quotas", sa.Column("tiers", sa.Text(), nullable=False, server_default=sa.text("'{}'")))


def downgrade() -> None:
    op.drop_column("quotas", "tiers")
