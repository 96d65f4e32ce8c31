"""The first tables, the name of this store, and generation 0 of both types.

Revision: 0001; after: nothing.
"""

import time
from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("action", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("type", sa.String(length=128), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("after", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "generations",
        sa.Column("type", sa.String(length=128), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("type", name=op.f("pk_generations")),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("control_url", sa.Text(), nullable=False),
        sa.Column("events_url", sa.Text(), nullable=False),
        sa.Column("epoch", sa.String(length=128), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("release", sa.String(length=128), nullable=False),
        sa.Column("engine_socket", sa.Text(), nullable=False),
        sa.Column("capacity_bytes", sa.BigInteger(), nullable=False),
        sa.Column("first_seen_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
    op.create_table(
        "pin_bodies",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_pin_bodies")),
    )
    op.create_table(
        "pushes",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("type", sa.String(length=128), nullable=False),
        sa.Column("node", sa.String(length=128), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.String(length=128), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("bodies", sa.BigInteger(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=False),
        sa.Column("answered_at", sa.Double(), nullable=True),
        sa.Column("applied_s", sa.Double(), nullable=True),
        sa.Column("faults", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pushes")),
    )
    op.create_index("ix_pushes_node_type", "pushes", ["node", "type"])
    op.create_table(
        "quotas",
        sa.Column("tenant", sa.String(length=128), nullable=False),
        sa.Column("limit_bytes", sa.BigInteger(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_quotas")),
    )
    op.create_table(
        "store",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_store")),
    )
    op.create_table(
        "observations",
        sa.Column("node", sa.String(length=128), nullable=False),
        sa.Column("type", sa.String(length=128), nullable=False),
        sa.Column("store", sa.String(length=128), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("nacked_generation", sa.BigInteger(), nullable=True),
        sa.Column("nacked_at", sa.Double(), nullable=True),
        sa.Column("faults", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["node"], ["nodes.name"], name=op.f("fk_observations_node_nodes"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("node", "type", name=op.f("pk_observations")),
    )
    op.create_table(
        "pins",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("tenant", sa.String(length=128), nullable=False),
        sa.Column("strength", sa.String(length=128), nullable=False),
        sa.Column("key_count", sa.BigInteger(), nullable=False),
        sa.Column("keys_digest", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["keys_digest"], ["pin_bodies.digest"], name=op.f("fk_pins_keys_digest_pin_bodies")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pins")),
    )
    op.create_index(op.f("ix_pins_keys_digest"), "pins", ["keys_digest"])

    now = time.time()
    store = sa.table("store", sa.column("id"), sa.column("created_at"))
    op.bulk_insert(store, [{"id": uuid4().hex, "created_at": now}])
    generations = sa.table("generations", sa.column("type"), sa.column("generation"), sa.column("changed_at"))
    op.bulk_insert(
        generations, [{"type": kind, "generation": 0, "changed_at": now} for kind in ("quotas", "pins")]
    )


def downgrade() -> None:
    for table in (
        "pins",
        "observations",
        "store",
        "quotas",
        "pushes",
        "pin_bodies",
        "nodes",
        "generations",
        "audit",
    ):
        op.drop_table(table)
