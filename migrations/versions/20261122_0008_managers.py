"""Management processes that share a database are managers; a replica means three things.

Revision: 0008; after: 0007.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _rename("replicas", "managers")


def downgrade() -> None:
    _rename("managers", "replicas")


def _rename(before: str, after: str) -> None:
    op.rename_table(before, after)
    if op.get_bind().dialect.name == "postgresql":  # SQLite cannot rename a constraint, and does not need to
        op.execute(f"ALTER TABLE {after} RENAME CONSTRAINT pk_{before} TO pk_{after}")
