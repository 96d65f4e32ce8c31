"""Tiers: stores behind the memory of nodes, and their contents there.

Deleting a record closes the tier on its nodes and deletes none of its blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.errors import Conflict
from app.ingest.fleet import Fleet
from app.schemas.records.tiers import SettingsTier, TierAnswer, TierDeletion, TierPut, TierRefusal
from app.services.base.changes import Change
from app.services.base.principals import PLANE, Principal
from app.services.records.record_types import Values
from app.services.records.records import RecordService
from app.services.records.tier_intent import TIERS, resolve
from app.store.records.tiers import TierRow
from dataplane.base.units import format_size
from dataplane.protocol.stats.tiers import TierStats


class Tiers(RecordService[TierRow, TierPut, TierAnswer]):
    kind = TIERS

    def _columns(self, name: str, intent: TierPut) -> Values:
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
        return _deletion(row.name, change.generations["tiers"], self._stats().get(row.name, {}))

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


def _deletion(name: str, generation: int, stats: dict[str, TierStats]) -> TierDeletion:
    blocks = sum(tier.blocks for tier in stats.values())
    stored_bytes = sum(tier.stored_bytes for tier in stats.values())
    if blocks:
        loss = f"{blocks:,} blocks ({format_size(stored_bytes)}) that it holds are no longer loaded"
        message = f"{loss}, and stay where they are: nothing is deleted from disks or servers"
    else:
        message = "no connected node reports blocks in it; nothing is deleted from disks or servers"
    return TierDeletion(name, generation, blocks, stored_bytes, sorted(stats), message)


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
