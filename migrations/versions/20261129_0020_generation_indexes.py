"""Indexes on the generation of records: a change and a push read those that changed since another generation.

Revision: 0020; after: 0019.
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TABLES = ("quotas", "pins", "policies", "tiers")


def upgrade() -> None:
    for table in TABLES:
        op.create_index(f"ix_{table}_generation", table, ["generation"])


def downgrade() -> None:
    for table in TABLES:
        op.drop_index(f"ix_{table}_generation", table)
