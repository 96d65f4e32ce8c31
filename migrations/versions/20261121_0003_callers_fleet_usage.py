"""Tokens and sessions, a chained audit, ceilings, owners and selectors of records, the fleet, tokenizers, usage.

Revision: 0003; after: 0002.
"""

import json
from hashlib import sha256

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_RECORDS = ("quotas", "pins", "policies")
_USED = (
    "held_kib_s",
    "requested_tokens",
    "served_tokens",
    "stored_blocks",
    "stored_bytes",
    "evicted_blocks",
    "evicted_bytes",
    "refused_blocks",
)
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _name(column: str, default: str | None = None, length: int = 128) -> sa.Column[str]:
    text = None if default is None else sa.text(f"'{default}'")
    return sa.Column(column, sa.String(length=length), nullable=False, server_default=text)


def _whole(column: str, default: str | None = None) -> sa.Column[int]:
    return sa.Column(column, sa.BigInteger(), nullable=False, server_default=default)


def _seconds(column: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(column, sa.Double(), nullable=nullable)


def upgrade() -> None:
    for table in _RECORDS:
        op.add_column(table, _name("managed_by", ""))
        op.add_column(table, sa.Column("selector", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("pins", _name("owner", ""))
    op.add_column("pins", sa.Column("origin", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("policies", _whole("priority", "0"))
    for column in (
        _name("token_id", ""),
        _name("source", ""),
        _name("trace_id", ""),
        _name("decision", "allowed"),
        sa.Column("reason", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("hash", sa.String(length=64), nullable=False, server_default=sa.text("''")),
    ):
        op.add_column("audit", column)
    for seen in (
        sa.Column("told_labels", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("labels", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("draining", sa.Boolean(), nullable=False, server_default=sa.false()),
        _name("public_key", ""),
        _name("joined_by", ""),
    ):
        op.add_column("nodes", seen)
    _create_callers()
    _create_fleet()
    _create_ledgers()


def _create_callers() -> None:
    op.create_table(
        "audit_head",
        _whole("id"),
        _whole("last_id"),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    head = sa.table("audit_head", sa.column("id"), sa.column("last_id"), sa.column("hash"))
    op.bulk_insert(head, [{"id": 1, **_chain()}])
    op.create_table(
        "tokens",
        _name("id"),
        _name("name"),
        _name("role"),
        sa.Column("tenants", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("hash", sa.String(length=64), nullable=False),
        _name("created_by"),
        _seconds("created_at"),
        _seconds("expires_at", nullable=True),
        _seconds("last_used_at", nullable=True),
        _name("last_used_from", ""),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("name", name=op.f("uq_tokens_name")),
    )
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.String(length=128), nullable=True),
        _name("configured", ""),
        _seconds("created_at"),
        _seconds("expires_at"),
        _name("source", ""),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_sessions_token_id_tokens"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_token_id"), "sessions", ["token_id"])
    op.create_table(
        "ceilings",
        _name("tenant"),
        sa.Column("max_limit_bytes", sa.BigInteger(), nullable=True),
        sa.Column("max_floor_bytes", sa.BigInteger(), nullable=True),
        sa.Column("max_weight", sa.Double(), nullable=True),
        sa.Column("max_pin_budget_bytes", sa.BigInteger(), nullable=True),
        sa.Column("max_store_rate_bytes", sa.BigInteger(), nullable=True),
        sa.Column("max_ttl_s", sa.Double(), nullable=True),
        sa.Column("strengths", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        _whole("revision"),
        _seconds("created_at"),
        _seconds("updated_at"),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_ceilings")),
    )


def _chain() -> dict[str, int | str]:
    """Hash the entries of earlier releases, oldest first, as `app.store.access.audit_chain` does; return the newest."""
    names = (
        *("id", "at", "actor", "token_id", "source", "action", "kind", "name", "type", "generation"),
        *("before", "after", "request_id", "trace_id", "decision", "reason"),
    )
    json_type = sa.JSON(none_as_null=True)
    columns = [sa.column(name, json_type if name in ("before", "after") else None) for name in names]
    audit = sa.table("audit", *columns, sa.column("hash"))
    connection = op.get_bind()
    last_id, last_hash = 0, ""
    while True:
        query = sa.select(*columns).where(audit.c.id > last_id).order_by(audit.c.id).limit(1000)
        rows = connection.execute(query).mappings().all()
        if not rows:
            return {"last_id": last_id, "hash": last_hash}
        hashes = []
        for row in rows:
            values = {name: row[name] for name in names}
            text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
            last_id, last_hash = row["id"], sha256(f"{last_hash}\n{text}".encode()).hexdigest()
            hashes.append({"row_id": last_id, "row_hash": last_hash})
        chained = sa.update(audit).where(audit.c.id == sa.bindparam("row_id"))
        connection.execute(chained.values(hash=sa.bindparam("row_hash")), hashes)


def _create_fleet() -> None:
    op.create_table(
        "join_tokens",
        _name("id"),
        _name("name"),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("labels", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("uses_left", sa.BigInteger(), nullable=True),
        _name("created_by"),
        _seconds("created_at"),
        _seconds("expires_at", nullable=True),
        _seconds("last_used_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_join_tokens")),
    )
    op.create_table(
        "replicas",
        _name("id"),
        _name("host"),
        _whole("pid"),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("pushing", sa.Boolean(), nullable=False),
        _seconds("started_at"),
        _seconds("seen_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replicas")),
    )
    op.create_table(
        "tokenizers",
        _name("name"),
        _name("model", length=256),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("file", sa.LargeBinary(), nullable=False),
        sa.Column("chat_template", sa.Text(), nullable=True),
        sa.Column("special_tokens", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("add_special_tokens", sa.Boolean(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        _whole("revision"),
        _seconds("created_at"),
        _seconds("updated_at"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tokenizers")),
        sa.UniqueConstraint("model", name=op.f("uq_tokenizers_model")),
    )


def _create_ledgers() -> None:
    op.create_table(
        "events",
        sa.Column("id", _ROW_NUMBER, autoincrement=True, nullable=False),
        _seconds("at"),
        _name("name"),
        _name("node"),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_at"), "events", ["at"])
    op.create_table(
        "usage",
        _whole("hour"),
        _name("node"),
        _name("tenant"),
        _name("model", length=256),
        _name("space"),
        *(_whole(column, "0") for column in _USED),
        sa.PrimaryKeyConstraint("hour", "node", "tenant", "model", "space", name=op.f("pk_usage")),
    )
    op.create_table(
        "usage_marks",
        _name("node"),
        _name("tenant"),
        _name("model", length=256),
        _name("space"),
        _name("epoch"),
        _whole("number"),
        _seconds("at"),
        *(_whole(column) for column in _USED),
        sa.PrimaryKeyConstraint("node", "tenant", "model", "space", name=op.f("pk_usage_marks")),
    )
    op.create_table(
        "rates",
        _name("name"),
        _name("model", length=256),
        _name("space", ""),
        sa.Column("prefill_tokens_per_s", sa.Double(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        _whole("revision"),
        _seconds("created_at"),
        _seconds("updated_at"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_rates")),
    )


def downgrade() -> None:
    for table in (
        "rates",
        "usage_marks",
        "usage",
        "events",
        "tokenizers",
        "replicas",
        "join_tokens",
        "ceilings",
        "sessions",
        "tokens",
        "audit_head",
    ):
        op.drop_table(table)
    for name in ("joined_by", "public_key", "draining", "labels", "told_labels"):
        op.drop_column("nodes", name)
    for name in ("hash", "reason", "decision", "trace_id", "source", "token_id"):
        op.drop_column("audit", name)
    op.drop_column("policies", "priority")
    op.drop_column("pins", "origin")
    op.drop_column("pins", "owner")
    for table in _RECORDS:
        op.drop_column(table, "selector")
        op.drop_column(table, "managed_by")
