"""Finds the pins with a problem among those that an overview does not list, however many there are."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from app.ingest.fleet import Fleet, is_empty, keeps_gpu_copies, unlisted_tiers
from app.schemas.records.pins import PinAnswer
from app.schemas.views.findings import MAX_OF_TYPE
from app.schemas.views.overview import Overview
from app.services.records.pins import Pins
from app.store.base.database import Database
from app.store.records import pins
from dataplane.base.labels import matches
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import PinStats


@dataclass(frozen=True)
class FurtherPins:
    """Pins with a problem that an overview does not list."""

    pins: Sequence[PinAnswer] = ()
    """At most MAX_OF_TYPE for each type of finding."""
    more: Counter[str] = field(default_factory=Counter)
    """Number of the others, by type of finding."""


class PinProblems:
    """Compares the statistics of all nodes with the records."""

    def __init__(self, database: Database, fleet: Fleet, pin_service: Pins) -> None:
        self._database = database
        self._fleet = fleet
        self._pins = pin_service

    async def beyond(self, overview: Overview, salts: Collection[str] | None) -> FurtherPins:
        """Return the pins of these tenants (None: of all) that have a problem and that the overview does not list.
        Raises StoreUnavailable."""
        if len(overview.pins) >= overview.pins_total:
            return FurtherPins()
        listed = {pin.name for pin in overview.pins}
        problems = await asyncio.to_thread(_problems, self._fleet.stats())
        living = self._fleet.living()
        async with self._database.read() as session:
            of_tenants = None if salts is None else await pins.names_of(session, salts)
            selectors = await pins.selectors(session)
            unmatched = [
                stored
                for stored, labels in selectors.items()
                if not any(matches(node.labels, labels) for node in living)
            ]
            if self._fleet.nodes and unmatched:
                problems["pin_not_applied"] = await pins.names_with(session, unmatched, time.time())
            omitted: Counter[str] = Counter()
            further_names: set[str] = set()
            for code, names in problems.items():
                further = sorted((names if of_tenants is None else names & of_tenants) - listed)
                further_names.update(further[:MAX_OF_TYPE])
                omitted[code] = len(further[MAX_OF_TYPE:])
            rows = await pins.named(session, further_names)
        return FurtherPins(self._pins.answers(rows), omitted)


def _problems(stats: Sequence[NodeStats]) -> dict[str, set[str]]:
    """Return the names of the pins with a problem that nodes report, by type of finding."""
    stats_by_pin: dict[str, list[tuple[PinStats, NodeStats]]] = {}
    for node in stats:
        for pin in node.pins:
            stats_by_pin.setdefault(pin.name, []).append((pin, node))
    unlisted = {node.node for node in stats if unlisted_tiers(node)}
    poolless = {node.node for node in stats if not keeps_gpu_copies(node.gpu_copy_pools)}
    problems: dict[str, set[str]] = {}
    for name, on_nodes in stats_by_pin.items():
        if all(pin.expired for pin, _ in on_nodes):
            continue
        if all(is_empty(pin) for pin, _ in on_nodes):
            is_unlisted = any(node.node in unlisted for _, node in on_nodes)
            problems.setdefault("pin_unlisted" if is_unlisted else "pin_holds_nothing", set()).add(name)
        if any(pin.only_in_tiers for pin, _ in on_nodes):
            problems.setdefault("pin_in_tiers", set()).add(name)
        if any(pin.degraded for pin, _ in on_nodes):
            problems.setdefault("pin_degraded", set()).add(name)
        for_gpus = [(pin, node) for pin, node in on_nodes if pin.tier == "gpu"]
        if any(node.node in poolless for _, node in for_gpus) and not any(pin.gpu_copies for pin, _ in for_gpus):
            problems.setdefault("pin_without_gpu_copies", set()).add(name)
    return problems
