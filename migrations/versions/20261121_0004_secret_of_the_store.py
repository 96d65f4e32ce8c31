"""A random secret of each database, with which hashes of callers' secrets are keyed: its name is known to many.

Hashes of before are hashed once more with it, so tokens and sessions of before stay valid. Going back ends them all.

Revision: 0004; after: 0003.
"""

import secrets

import sqlalchemy as sa
from alembic import op
from blake3 import blake3

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "store", sa.Column("secret", sa.String(length=64), nullable=False, server_default=sa.text("''"))
    )
    secret = secrets.token_hex(32)
    op.execute(sa.update(sa.table("store", sa.column("secret"))).values(secret=secret))
    key = blake3(secret.encode(), derive_key_context="larder 2026-11-21 hashes of callers").digest()
    for table, column in (("tokens", "hash"), ("sessions", "configured"), ("sessions", "hash")):
        _hash_again(table, column, key)


def _hash_again(name: str, column: str, key: bytes) -> None:
    """As `app.services.access.credentials` does."""
    table = sa.table(name, sa.column(column))
    held = table.c[column]
    connection = op.get_bind()
    for old in connection.scalars(sa.select(held).where(held != "").distinct()).all():
        new = blake3(old.encode(), key=key).hexdigest()
        connection.execute(sa.update(table).where(held == old).values({column: new}))


def downgrade() -> None:
    op.execute("DELETE FROM sessions")
    op.execute("DELETE FROM tokens")
    op.drop_column("store", "secret")
