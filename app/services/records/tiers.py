"""Tiers: stores behind the memory of nodes, and their contents there.

A requested tier is checked for sizes, bounds, and the parameters of its type where that is installed here. Nodes check
the rest: whether a directory can be created, and whether a secret can be read. A literal secret is refused. Deleting a
record closes the tier on its nodes and deletes none of its blocks.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from app.errors import Conflict
from app.ingest.fleet import Fleet
from app.schemas.base.records import written
from app.schemas.records.tiers import SettingsTier, TierAnswer, TierDeletion, TierList, TierPut, TierRecord, TierRefusal
from app.services.base import checks, literal_secrets
from app.services.base.changes import Change
from app.services.base.principals import PLANE, Principal
from app.services.records.record_types import PushedType, Values, checked, columns
from app.services.records.records import RecordService
from app.store.records import tiers
from app.store.records.tiers import TierRow
from dataplane.base.units import format_size
from dataplane.base.visible import is_printable
from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.tiers import (
    MAX_BUDGET_BYTES,
    MAX_DEADLINE_S,
    MAX_IN_FLIGHT_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_ORDER,
    MEMORY,
    MIN_IN_FLIGHT_BYTES,
    TierSpec,
)
from dataplane.tiers import registry

TIERS = PushedType(
    name="tiers",
    noun="tier",
    row=TierRow,
    sortable=tiers.SORTABLE,
    key="name",
    put=TierPut,
    answer=TierAnswer,
    listing=TierList,
    written=written(TierRecord),
)
MAX_PARAMETERS_BYTES = 16_384
"""Largest size of the parameters in MessagePack. The size of a snapshot is computed with it for every tier."""
MAX_DEPTH = 8
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 63) - 1
_SIZES = {"budget_bytes": (1, MAX_BUDGET_BYTES), "max_bytes_in_flight": (MIN_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_BYTES)}
_AS_GIVEN = ("order", "spill", "load_deadline_s", "compress", "note", "managed_by", "selector")


class Tiers(RecordService[TierRow, TierPut, TierAnswer]):
    kind = TIERS

    async def _columns(self, name: str, intent: TierPut, by: Principal) -> Values:
        return resolve(name, intent)

    def answers(self, rows: Sequence[TierRow], by: Principal = PLANE) -> list[TierAnswer]:
        stats = self._stats()
        faults = {
            node.name: [TierRefusal(fault.path, fault.code, fault.message) for fault in node_faults]
            for node in self._fleet.living()
            if (node_faults := self._progress.faults(node, "tiers"))
        }
        answers = []
        for row in rows:
            status, stats_by_node = self._status(row, by), stats.get(row.name, {})
            refused = {node: refusals for node, refusals in faults.items() if node in status.nodes}
            answers.append(
                TierAnswer(
                    **TIERS.described(row), **_sums(stats_by_node), stats=stats_by_node, faults=refused, status=status
                )
            )
        return answers

    def _list_fields(self, filters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tiers of the settings of nodes, which have no owner."""
        tiers = []
        for name, stats in sorted(self._stats(from_settings=True).items()):
            shown = {node: tier for node, tier in stats.items() if filters.get("type") in (None, tier.type)}
            if shown and filters.get("managed_by") is None:
                tiers.append(SettingsTier(name, **_sums(shown), stats=shown))
        return {"from_settings": tiers}

    def _deletion(self, row: TierRow, change: Change) -> TierDeletion:
        stats = self._stats().get(row.name, {})
        sums = _sums(stats)
        blocks, stored_bytes = sums["blocks"], sums["stored_bytes"]
        if blocks:
            loss = f"{blocks:,} blocks ({format_size(stored_bytes)}) that it holds are no longer loaded"
            message = f"{loss}, and stay where they are: nothing is deleted from disks or servers"
        else:
            message = "no connected node reports blocks in it; nothing is deleted from disks or servers"
        return TierDeletion(row.name, change.generations["tiers"], blocks, stored_bytes, sorted(stats), message)

    async def remove(self, change: Change, row: TierRow) -> None:
        """Delete a record. Raises Conflict while the tier drains."""
        if row.spill == "drain":
            check_drained(row.name, self._fleet)
        await super().remove(change, row)

    def _stats(self, *, from_settings: bool = False) -> dict[str, dict[str, TierStats]]:
        """Return what the nodes that are not lost report of tiers of records, or of their settings, by tier and
        node."""
        stats_by_tier: dict[str, dict[str, TierStats]] = {}
        for stats in sorted(self._fleet.stats(), key=lambda stats: stats.node):
            for tier in stats.tiers:
                if tier.from_settings == from_settings:
                    stats_by_tier.setdefault(tier.name, {})[stats.node] = tier
        return stats_by_tier


def _sums(stats: dict[str, TierStats]) -> dict[str, Any]:
    """Return what a tier holds on all nodes, and what is still to be copied to it."""
    tiers = stats.values()
    return {
        "blocks": sum(tier.blocks for tier in tiers),
        "stored_bytes": sum(tier.stored_bytes for tier in tiers),
        "logical_bytes": sum(tier.logical_bytes for tier in tiers),
        "unspilled_bytes": sum(tier.waiting_bytes + tier.spilling_bytes for tier in tiers),
    }


def check_drained(name: str, fleet: Fleet) -> None:
    """Raise Conflict if a connected node reports blocks that only the tier holds."""
    undrained = []
    for stats in sorted(fleet.stats(), key=lambda stats: stats.node):
        for tier in stats.tiers:
            if tier.name == name and not tier.from_settings:
                remaining = tier.blocks if tier.draining_blocks is None else tier.draining_blocks
                undrained += [f"{remaining:,} on {stats.node}"] if remaining else []
    if undrained:
        raise Conflict(
            f"the tier {name!r} drains, and only it holds some blocks ({', '.join(undrained)}): wait until none is "
            "left, or set its spill to 'off' to cancel the drain"
        )


# ---- the rules of one tier


def resolve(name: str, intent: TierPut) -> Values:
    """Return the columns of the checked intent. Raises Invalid with every fault found."""
    faults = checks.Faults()
    if len(name) > MAX_NAME_CHARACTERS:
        faults.add("name", f"expected at most {MAX_NAME_CHARACTERS} characters, got {len(name)}")
    if name == MEMORY:
        faults.add("name", f"expected another name: {MEMORY!r} is reserved for the memory of the pool")
    for field in TierPut.REQUIRED:
        if getattr(intent, field) is msgspec.UNSET:
            faults.add(field, "expected a value")
    sizes = {field: faults.check(field, partial(_size, intent, field)) for field in _SIZES}
    if not 0 <= intent.order <= MAX_ORDER:
        faults.add("order", f"expected 0 to {MAX_ORDER:,}, got {intent.order}")
    if not 0 < intent.load_deadline_s <= MAX_DEADLINE_S:
        faults.add(
            "load_deadline_s",
            f"expected more than 0 and at most {MAX_DEADLINE_S:g} seconds, got {intent.load_deadline_s:g}",
        )
    other_columns = checked(columns(intent, _AS_GIVEN), faults)
    _check_parameters(intent, sizes["budget_bytes"] or MAX_BUDGET_BYTES, faults)
    faults.stop()
    return {"name": name, "type": intent.type, **sizes, "parameters": intent.parameters, **other_columns}


def _size(intent: TierPut, field: str) -> int:
    """Return the size, 0 if it is missing. Raises ValueError."""
    low, high = _SIZES[field]
    field_value = getattr(intent, field)
    if field_value is msgspec.UNSET:
        return 0
    value = checks.size(field_value) or 0
    if not low <= value <= high:
        low_text = f"{low} byte" if low == 1 else format_size(low)
        raise ValueError(f"expected {low_text} to {format_size(high)}, got {format_size(value)}")
    return value


def _check_parameters(intent: TierPut, budget_bytes: int, faults: checks.Faults) -> None:
    """Check the type and its parameters, secrets first: no message repeats a value that may be one."""
    secret_faults = list(literal_secrets.faults(intent.parameters, "parameters"))
    for path, message in secret_faults:
        faults.add(path, message)
    if secret_faults:
        return
    try:
        _check_plain(intent.parameters, "parameters", 1)
        size = len(msgspec.msgpack.encode(intent.parameters))
        if size > MAX_PARAMETERS_BYTES:
            raise registry.ParameterError("", f"expected at most {MAX_PARAMETERS_BYTES:,} bytes, got {size:,}")
    except registry.ParameterError as error:
        faults.add(error.field or "parameters", str(error).removeprefix(f"{error.field}: "))
        return
    if intent.type is not msgspec.UNSET:
        _check_type(intent.type, intent, budget_bytes, faults)


def _check_type(kind: str, intent: TierPut, budget_bytes: int, faults: checks.Faults) -> None:
    """Check the type, and what depends on it; its parameters only if its package can be imported here, because nodes
    check them, too."""
    tier_types = registry.tier_types()
    if kind not in tier_types:
        message = (
            f"expected one of {', '.join(tier_types)}, got {kind[:64]!r}; a type of another package must "
            "be installed beside the management plane, too"
        )
        faults.add("type", message)
        return
    try:
        registry.tier_type(kind)
    except registry.ParameterError:
        return  # its package lacks a dependency here
    for field, text in registry.tier_faults_of(
        TierSpec("", kind, budget_bytes, intent.parameters, compress=intent.compress)
    ):
        faults.add(field, text)


def _check_plain(value: Any, path: str, depth: int) -> None:
    """Check that databases and nodes can hold the value. Raises ParameterError."""
    if depth > MAX_DEPTH:
        raise registry.ParameterError(path, f"expected at most {MAX_DEPTH} levels")
    if isinstance(value, str):
        if not is_printable(value):
            raise registry.ParameterError(path, "expected printable characters")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _check_plain(name, path, depth)
            _check_plain(item, f"{path}.{name}", depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_plain(item, f"{path}[{number}]", depth + 1)
    elif isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
        raise registry.ParameterError(path, "expected a number of at most 64 bits")
