"""The first tables, and their first rows: the name and the secret of this store, the head of the audit, and
generation 0 of each type of record.

Revision: 0017; after: nothing. Databases of earlier revisions were never released.
"""

import secrets
import time
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = None
branch_labels = None
depends_on = None

Columns = list[sa.Column[object]]
Default = str | sa.ColumnElement[Any] | None
TABLES = (
    "sessions",
    "pins",
    "observations",
    "usage_marks",
    "usage",
    "tokens",
    "tokenizers",
    "tiers",
    "tier_usage_marks",
    "tier_usage",
    "store",
    "rates",
    "quotas",
    "pushes",
    "policies",
    "pin_bodies",
    "nodes",
    "managers",
    "join_tokens",
    "held_pins",
    "generations",
    "events",
    "ceilings",
    "audit_head",
    "audit",
    "alerts",
)


def _columns(kind: sa.types.TypeEngine[Any], names: tuple[str, ...], nullable: bool, default: Default) -> Columns:
    return [sa.Column(name, kind, nullable=nullable, server_default=default) for name in names]


def _names(*names: str, length: int = 128, nullable: bool = False, default: str | None = None) -> Columns:
    return _columns(sa.String(length), names, nullable, default)


def _texts(*names: str, nullable: bool = False, default: str | None = None) -> Columns:
    return _columns(sa.Text(), names, nullable, default)


def _numbers(*names: str, nullable: bool = False, default: str | None = None) -> Columns:
    return _columns(sa.BigInteger(), names, nullable, default)


def _doubles(*names: str, nullable: bool = False, default: str | None = None) -> Columns:
    return _columns(sa.Double(), names, nullable, default)


def _json(*names: str, nullable: bool = False, default: str | None = None) -> Columns:
    return _columns(sa.JSON(), names, nullable, default)


def _flags(*names: str, default: Default = None) -> Columns:
    return _columns(sa.Boolean(), names, False, default)


def _blobs(*names: str) -> Columns:
    return _columns(sa.LargeBinary(), names, False, None)


def _row_number() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", kind, autoincrement=True, nullable=False)


def _create(table: str, keys: tuple[str, ...], *columns: sa.schema.SchemaItem) -> None:
    op.create_table(table, *columns, sa.PrimaryKeyConstraint(*keys, name=f"pk_{table}"))


def _insert(table: str, *rows: dict[str, Any]) -> None:
    op.bulk_insert(sa.table(table, *(sa.column(name) for name in rows[0])), list(rows))


def upgrade() -> None:
    _create(
        "alerts",
        ("fingerprint",),
        *_names("fingerprint", length=64),
        *_names("alertname", "severity", "state", "tenant", "node", default=""),
        *_json("labels", "annotations"),
        *_texts("generator_url", default=""),
        *_doubles("starts_at", default="0"),
        *_doubles("ended_at", nullable=True),
        *_doubles("received_at", "expires_at", default="0"),
    )
    op.create_index("ix_alerts_state", "alerts", ["state"])
    _create(
        "audit",
        ("id",),
        _row_number(),
        *_doubles("at"),
        *_names("actor"),
        *_names("token_id", "source", default=""),
        *_names("action", "kind"),
        *_names("name", length=256),
        *_names("type"),
        *_numbers("generation"),
        *_json("before", "after", nullable=True),
        *_names("request_id"),
        *_names("trace_id", default=""),
        *_names("decision", default="allowed"),
        *_texts("reason", default=""),
        *_names("hash", length=64, default=""),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    _create("audit_head", ("id",), *_numbers("id", "last_id"), *_names("hash", length=64))
    _create(
        "ceilings",
        ("tenant",),
        *_names("tenant"),
        *_numbers("max_limit_bytes", "max_floor_bytes", nullable=True),
        *_doubles("max_weight", nullable=True),
        *_numbers("max_pin_budget_bytes", "max_store_rate_bytes", nullable=True),
        *_doubles("max_ttl_s", nullable=True),
        *_json("no_bound", "strengths", nullable=True),
        *_texts("note"),
        *_numbers("revision"),
        *_doubles("created_at", "updated_at"),
    )
    _create(
        "events",
        ("id",),
        _row_number(),
        *_doubles("at"),
        *_names("name", "node"),
        *_names("actor", default=""),
        *_json("fields"),
    )
    op.create_index("ix_events_at", "events", ["at"])
    _create(
        "generations",
        ("type",),
        *_names("type"),
        *_numbers("generation"),
        *_doubles("changed_at"),
        *_names("traceparent", default=""),
    )
    _create("held_pins", ("node", "pin"), *_names("node", "pin"), *_names("keys_digest", length=64))
    _create(
        "join_tokens",
        ("id",),
        *_names("id", "name"),
        *_names("hash", length=64),
        *_json("labels", nullable=True),
        *_numbers("uses_left", nullable=True),
        *_names("created_by"),
        *_doubles("created_at"),
        *_doubles("expires_at", "last_used_at", nullable=True),
    )
    _create(
        "managers",
        ("id",),
        *_names("id", "host"),
        *_numbers("pid"),
        *_texts("url"),
        *_flags("pushing"),
        *_doubles("started_at", "seen_at"),
    )
    _create(
        "nodes",
        ("name",),
        *_names("name"),
        *_texts("control_url", "events_url"),
        *_names("epoch"),
        *_numbers("pid"),
        *_names("release"),
        *_texts("engine_socket"),
        *_numbers("capacity_bytes"),
        *_numbers("wanted_capacity_bytes", nullable=True),
        *_json("reported_labels", "labels", nullable=True),
        *_flags("draining", default=sa.false()),
        *_names("public_key", "joined_by", default=""),
        *_doubles("first_seen_at", "seen_at"),
    )
    _create("pin_bodies", ("digest",), *_names("digest", length=64), *_blobs("body"), *_doubles("created_at"))
    _create(
        "policies",
        ("name",),
        *_names("name", "algorithm"),
        *_flags("admission"),
        *_doubles("admission_idle_s", "high_watermark", "low_watermark"),
        *_texts("note"),
        *_names("managed_by", default=""),
        *_json("selector", nullable=True),
        *_numbers("priority", default="0"),
        *_numbers("generation"),
        *_doubles("created_at", "updated_at"),
    )
    _create(
        "pushes",
        ("id",),
        _row_number(),
        *_names("type", "node"),
        *_numbers("generation"),
        *_names("digest", length=64),
        *_names("state", "reason"),
        *_numbers("attempt", "size_bytes", "bodies"),
        *_doubles("sent_at"),
        *_doubles("answered_at", "applied_s", nullable=True),
        *_json("faults"),
    )
    op.create_index("ix_pushes_node_type", "pushes", ["node", "type"])
    _create(
        "quotas",
        ("tenant",),
        *_names("tenant"),
        *_numbers("limit_bytes", nullable=True),
        *_numbers("floor_bytes", default="0"),
        *_doubles("weight", default="1"),
        *_numbers("pin_budget_bytes", "store_rate_bytes", nullable=True),
        *_names("on_exceed", default="evict_self"),
        *_names("mode", default="enforce"),
        *_texts("tiers", default="{}"),
        *_texts("note"),
        *_names("managed_by", default=""),
        *_json("selector", nullable=True),
        *_numbers("generation"),
        *_doubles("created_at", "updated_at"),
    )
    _create(
        "rates",
        ("name",),
        *_names("name"),
        *_names("model", length=256),
        *_names("space", default=""),
        *_doubles("prefill_tokens_per_s"),
        *_texts("note"),
        *_numbers("revision"),
        *_doubles("created_at", "updated_at"),
    )
    _create(
        "store", ("id",), *_names("id", length=32), *_doubles("created_at"), *_names("secret", length=64, default="")
    )
    _create(
        "tier_usage",
        ("hour", "node", "tenant", "model", "space", "tier"),
        *_numbers("hour"),
        *_names("node", "tenant"),
        *_names("model", length=256),
        *_names("space", "tier"),
        *_numbers("held_kib_s", "served_tokens", "served_bytes"),
    )
    _create(
        "tier_usage_marks",
        ("node", "tenant", "model", "space", "tier"),
        *_names("node", "tenant"),
        *_names("model", length=256),
        *_names("space", "tier", "epoch"),
        *_numbers("number"),
        *_doubles("at"),
        *_numbers("held_kib_s", "served_tokens", "served_bytes"),
    )
    _create(
        "tiers",
        ("name",),
        *_names("name", "type"),
        *_numbers("budget_bytes"),
        *_json("parameters"),
        *_numbers("order"),
        *_names("spill"),
        *_doubles("load_deadline_s"),
        *_numbers("max_bytes_in_flight"),
        *_names("compress", default="none"),
        *_texts("note"),
        *_names("managed_by"),
        *_json("selector", nullable=True),
        *_numbers("generation"),
        *_doubles("created_at", "updated_at"),
    )
    _create(
        "tokenizers",
        ("name",),
        *_names("name"),
        *_names("model", length=256),
        *_names("digest", length=64),
        *_blobs("file"),
        *_texts("chat_template", nullable=True),
        *_json("special_tokens", nullable=True),
        *_flags("add_special_tokens"),
        *_texts("note"),
        *_numbers("revision"),
        *_doubles("created_at", "updated_at"),
        sa.UniqueConstraint("model", name="uq_tokenizers_model"),
    )
    _create(
        "tokens",
        ("id",),
        *_names("id", "name", "role"),
        *_json("tenants", nullable=True),
        *_names("hash", length=64),
        *_names("created_by"),
        *_doubles("created_at"),
        *_doubles("expires_at", "last_used_at", nullable=True),
        *_names("last_used_from", default=""),
        sa.UniqueConstraint("name", name="uq_tokens_name"),
    )
    _create(
        "usage",
        ("hour", "node", "tenant", "model", "space"),
        *_numbers("hour"),
        *_names("node", "tenant"),
        *_names("model", length=256),
        *_names("space"),
        *_numbers(
            "held_kib_s",
            "requested_tokens",
            "served_tokens",
            "stored_blocks",
            "stored_bytes",
            "evicted_blocks",
            "evicted_bytes",
            "refused_blocks",
            "served_bytes",
            default="0",
        ),
    )
    _create(
        "usage_marks",
        ("node", "tenant", "model", "space"),
        *_names("node", "tenant"),
        *_names("model", length=256),
        *_names("space", "epoch"),
        *_numbers("number"),
        *_doubles("at"),
        *_numbers(
            "held_kib_s",
            "requested_tokens",
            "served_tokens",
            "stored_blocks",
            "stored_bytes",
            "evicted_blocks",
            "evicted_bytes",
            "refused_blocks",
        ),
        *_numbers("served_bytes", default="0"),
    )
    _create(
        "observations",
        ("node", "type"),
        *_names("node", "type", "store"),
        *_numbers("generation"),
        *_names("digest", length=64),
        *_numbers("nacked_generation", nullable=True),
        *_doubles("nacked_at", nullable=True),
        *_json("faults", nullable=True),
        *_doubles("updated_at"),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_observations_node_nodes", ondelete="CASCADE"),
    )
    _create(
        "pins",
        ("name",),
        *_names("name"),
        *_names("model", length=256),
        *_names("tenant", "strength"),
        *_names("tier", default="host"),
        *_numbers("key_count"),
        *_names("keys_digest", length=64),
        *_doubles("expires_at", "refresh_s", nullable=True),
        *_texts("note"),
        *_names("managed_by", default=""),
        *_json("selector", nullable=True),
        *_names("owner", default=""),
        *_json("origin", nullable=True),
        *_numbers("generation"),
        *_doubles("created_at", "updated_at"),
        sa.ForeignKeyConstraint(["keys_digest"], ["pin_bodies.digest"], name="fk_pins_keys_digest_pin_bodies"),
    )
    op.create_index("ix_pins_keys_digest", "pins", ["keys_digest"])
    _create(
        "sessions",
        ("hash",),
        *_names("hash", length=64),
        *_names("token_id", nullable=True),
        *_names("configured", default=""),
        *_doubles("created_at", "expires_at"),
        *_names("source", default=""),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name="fk_sessions_token_id_tokens", ondelete="CASCADE"),
    )
    op.create_index("ix_sessions_token_id", "sessions", ["token_id"])
    now = time.time()
    _insert("store", {"id": uuid4().hex, "created_at": now, "secret": secrets.token_hex(32)})
    _insert("audit_head", {"id": 1, "last_id": 0, "hash": ""})
    _insert(
        "generations",
        *({"type": name, "generation": 0, "changed_at": now} for name in ("quotas", "pins", "policies", "tiers")),
    )


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
