"""The labels that a node reports are called that.

Revision: 0009; after: 0008.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE nodes RENAME COLUMN told_labels TO reported_labels")


def downgrade() -> None:
    op.execute("ALTER TABLE nodes RENAME COLUMN reported_labels TO told_labels")
