"""Tiers: stores behind the memory of nodes, and their contents there.

Deleting a record closes the tier on its nodes and deletes none of its blocks.
"""

from collections.abc import Sequence
from typing import Any

from app.errors import Conflict
from app.ingest.fleet import Fleet
from app.schemas.base.listing import PageRequest
from app.schemas.records.tiers import (
    SettingsTier,
    TierAnswer,
    TierDeletion,
    TierFilters,
    TierList,
    TierPut,
    TierRecord,
    TierRefusal,
)
from app.services.base import checks
from app.services.base.preconditions import ANY, Precondition
from app.services.base.principals import Principal
from app.services.records.named_records import PushedRecords
from app.services.records.tier_intent import TIERS, resolve
from app.store.records.tiers import TierRow
from dataplane.base.units import format_size
from dataplane.protocol.stats.tiers import TierStats


class Tiers(PushedRecords[TierRow, TierPut, TierAnswer]):
    _type = TIERS
    _pushed = ("tiers",)
    _resolve = staticmethod(resolve)

    async def page(self, page_request: PageRequest, filters: TierFilters) -> TierList:
        """Return a page of tiers. Raises Invalid."""
        page = await TIERS.page(self._database, page_request, vars(filters))
        return TierList(self.answers(page.rows), page.total, page.next_cursor, self._from_settings(filters))

    def _from_settings(self, filters: TierFilters) -> list[SettingsTier]:
        if filters.managed_by is not None:
            return []
        tiers = []
        for name, stats in sorted(self._stats(from_settings=True).items()):
            shown = {node: tier for node, tier in stats.items() if filters.type in (None, tier.type)}
            if shown:
                tiers.append(SettingsTier(name, **_sums(shown), stats=shown))
        return tiers

    async def delete(self, name: str, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0) -> TierDeletion:
        """Delete the record, and return what the tier holds. Raises Invalid, NotFound, PreconditionFailed,
        PreconditionRequired, and Conflict while the tier drains."""
        checks.pin_name(name)
        stats = self._stats().get(name, {})
        async with self._changes.begin(by, "tiers") as change:
            row = await TIERS.existing(change, name, expected)
            if row.spill == "drain":
                check_drained(name, self._fleet)
            await TIERS.remove(change, row)
        generation = change.generations["tiers"]
        await self._progress.wait("tiers", generation, wait_s)
        return _deletion(name, generation, stats)

    def answers(self, rows: Sequence[TierRow]) -> list[TierAnswer]:
        """Return records with what the nodes report about their tiers."""
        stats = self._stats()
        faults = {
            node.name: [TierRefusal(fault.path, fault.code, fault.message) for fault in found]
            for node in self._fleet.living()
            if (found := self._progress.faults(node, "tiers"))
        }
        return [self._answer(row, stats.get(row.name, {}), faults) for row in rows]

    def _stats(self, *, from_settings: bool = False) -> dict[str, dict[str, TierStats]]:
        """Return what the nodes that are not lost report of tiers of records, or of their settings, by tier and
        node."""
        found: dict[str, dict[str, TierStats]] = {}
        for stats in sorted(self._fleet.stats(), key=lambda stats: stats.node):
            for tier in stats.tiers:
                if tier.from_settings == from_settings:
                    found.setdefault(tier.name, {})[stats.node] = tier
        return found

    def _answer(self, row: TierRow, stats: dict[str, TierStats], faults: dict[str, list[TierRefusal]]) -> TierAnswer:
        status = self._progress.status(
            "tiers", row.generation, name=row.name, selector=row.selector, since=row.updated_at
        )
        return TierAnswer(
            **TIERS.described(row, TierRecord.__struct_fields__),
            **_sums(stats),
            stats=stats,
            faults={node: found for node, found in faults.items() if node in status.nodes},
            status=status,
        )


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
    waiting = []
    for stats in sorted(fleet.stats(), key=lambda stats: stats.node):
        for tier in stats.tiers:
            if tier.name == name and not tier.from_settings:
                left = tier.blocks if tier.draining_blocks is None else tier.draining_blocks
                waiting += [f"{left:,} on {stats.node}"] if left else []
    if waiting:
        raise Conflict(
            f"the tier {name!r} drains, and only it holds some blocks ({', '.join(waiting)}): wait until none is left, "
            "or set its spill to 'off' to cancel the drain"
        )
