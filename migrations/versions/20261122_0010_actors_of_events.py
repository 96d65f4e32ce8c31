"""Events name who caused them.

Revision: 0010; after: 0009.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("actor", sa.String(128), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("events", "actor")
