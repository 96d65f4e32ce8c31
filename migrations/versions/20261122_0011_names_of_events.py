"""Names of events are `noun.past_participle`, and their fields name records by type.

Revision: 0011; after: 0010. Events that were stored under the old names are renamed. A downgrade leaves the new names.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

BATCH = 1_000
RENAMED = {
    "block.corrupt": "block.corrupted",
    "blocks.verify": "verification.requested",
    "cache.cold": "cache.started_cold",
    "database.away": "database.lost",
    "database.back": "database.recovered",
    "engine.gone": "engine.released",
    "gpu_copy_pool.made": "gpu_copy_pool.created",
    "id_journal.filling": "id_journal.nearly_filled",
    "join_token.create": "join_token.created",
    "join_token.delete": "join_token.deleted",
    "manager.following": "manager.demoted",
    "manager.leading": "manager.promoted",
    "node.clock_off": "node.clock_skewed",
    "node.clock_right": "node.clock_corrected",
    "node.drain": "node.drain_requested",
    "node.draining": "node.drain_started",
    "node.expel": "engine.expel_requested",
    "node.forget": "node.forgotten",
    "node.join": "node.enrolled",
    "node.label": "node.relabeled",
    "node.not_resized": "node.resize_refused",
    "node.readmit": "engine.readmit_requested",
    "node.resize": "node.resize_requested",
    "node.stopping": "node.stopped",
    "node.taking": "node.drain_ended",
    "node.undrain": "node.undrain_requested",
    "plane.restart": "manager.restart_requested",
    "session.login": "session.opened",
    "session.logout": "session.closed",
    "sweep.done": "sweep.ended",
    "token.create": "token.created",
    "token.delete": "token.revoked",
    "token.update": "token.changed",
    "verify.done": "verification.ended",
}
SWEEPS = {"blocks.invalidate": "invalidate", "blocks.demote": "demote", "blocks.clear": "clear"}
RECORDS = {"quota": "tenant", "pin": "pin", "policy": "policy"}
"""Nouns of records of which nodes know, and the field that names the record."""
UNPUSHED = {"ceiling": "tenant", "rate": "rate", "tokenizer": "tokenizer"}
"""The same for other records."""
PARTICIPLES = {"create": "created", "update": "changed", "delete": "deleted"}
SUMS = {f"{kind}.changed": kind for kind in ("quotas", "pins", "policies")}
FIELDS = {
    "engine.refused": {"code": "reason"},
    "gpu_copy_pool.failed": {"problem": "reason"},
    "join_token.created": {"name": "join_token"},
    "join_token.deleted": {"name": "join_token"},
    "manager.restart_requested": {"name": "manager"},
    "node.resize_refused": {"wanted_bytes": "pool_bytes"},
    "pin.degraded": {"name": "pin"},
    "pin.emptied": {"name": "pin"},
    "pin.expired": {"name": "pin"},
    "token.changed": {"name": "token"},
    "token.created": {"name": "token"},
    "token.revoked": {"name": "token"},
    "verification.requested": {"name": "scope"},
}
"""Renamed fields by new name of the event."""
NODE_ALONE = frozenset(
    {
        "engine.expel_requested",
        "engine.readmit_requested",
        "node.drain_requested",
        "node.enrolled",
        "node.forgotten",
        "node.moved",
        "node.relabeled",
        "node.resize_requested",
        "node.undrain_requested",
        "session.closed",
        "session.opened",
    }
)
"""Events whose field `name` repeated the node or the actor."""


def upgrade() -> None:
    events = sa.table(
        "events",
        sa.column("id", sa.BigInteger()),
        sa.column("name", sa.String()),
        sa.column("fields", sa.JSON()),
    )
    connection = op.get_bind()
    nouns = ({**RECORDS, **UNPUSHED}).keys()
    old = {*RENAMED, *SWEEPS, *SUMS, *FIELDS, *NODE_ALONE}
    old |= {f"{noun}.changed" for noun in RECORDS} | {
        f"{noun}.{verb}" for noun in nouns for verb in PARTICIPLES
    }
    change = (
        sa.update(events)
        .where(events.c.id == sa.bindparam("row_id"))
        .values(name=sa.bindparam("new_name"), fields=sa.bindparam("new_fields", type_=sa.JSON()))
    )
    last = -1
    while True:
        query = sa.select(events).where(events.c.id > last, events.c.name.in_(sorted(old)))
        rows = connection.execute(query.order_by(events.c.id).limit(BATCH)).all()
        if not rows:
            return
        last = rows[-1].id
        changes = []
        for row in rows:
            name, fields = renamed(row.name, row.fields if isinstance(row.fields, dict) else {})
            changes.append({"row_id": row.id, "new_name": name, "new_fields": fields})
        connection.execute(change, changes)


def renamed(name: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the new name and fields of an event."""
    fields = dict(fields)
    noun, _, verb = name.partition(".")
    if noun in RECORDS and verb == "changed" and "action" in fields:
        verb = PARTICIPLES.get(fields.pop("action"), "changed")
        return f"{noun}.{verb}", _moved(fields, {"name": RECORDS[noun]})
    if noun in UNPUSHED and verb in PARTICIPLES:
        return f"{noun}.{PARTICIPLES[verb]}", _moved(fields, {"name": UNPUSHED[noun]})
    if name in SUMS:
        counts = dict.fromkeys(PARTICIPLES.values(), 0)
        counts[PARTICIPLES.get(fields.get("action", ""), "changed")] = fields.get("count", 0)
        return "records.changed", {"type": SUMS[name], "generation": fields.get("generation", 0), **counts}
    if name in SWEEPS:
        return "sweep.requested", {"kind": SWEEPS[name], **_moved(fields, {"name": "scope"})}
    name = RENAMED.get(name, name)
    if name in NODE_ALONE:
        fields.pop("name", None)
    return name, _moved(fields, FIELDS.get(name, {}))


def _moved(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}


def downgrade() -> None:
    pass
