"""The health checks: this process works, it serves the API, and the nodes hold what the records ask for.

Unauthenticated callers see neither the names of nodes nor the location of the database.
"""

from collections.abc import Callable

from app import __version__
from app.errors import NotReady, StoreUnavailable
from app.ingest.fleet import Fleet
from app.schemas.views.health import FleetHealth, Health, Readiness
from app.services.base.loading_cache import LoadingCache
from app.services.records.progress import RecordProgress
from app.store.base.database import Database


class HealthChecks:
    """Answers for `/healthz`, `/readyz` and `/healthz/fleet`. A `anonymous` is an unauthenticated caller."""

    def __init__(self, database: Database, progress: RecordProgress, fleet: Fleet, serves: Callable[[], bool]) -> None:
        """`serves`: whether the embedded data plane was heard from, or there is none."""
        self._database = database
        self._pings = LoadingCache(lambda _: database.ping(), 1, seconds=0.0)
        """Queries of the database, one at a time. A check that ends before its query cancels none: the driver takes
        seconds to end a connection that hangs."""
        self._progress = progress
        self._fleet = fleet
        self._serves = serves
        self._has_served = False

    async def ping(self, *, anonymous: bool) -> None:
        """Query the database. Raises StoreUnavailable."""
        try:
            await self._pings.get("")
        except StoreUnavailable as error:
            if anonymous:
                raise StoreUnavailable("the database does not answer") from error
            raise

    async def health(self, *, anonymous: bool) -> Health:
        """Raises StoreUnavailable."""
        await self.ping(anonymous=anonymous)
        return Health("ok", __version__, self._database.origin)

    async def readiness(self, *, anonymous: bool) -> Readiness:
        """Return whether this process can serve requests, whatever state the nodes are in: a lost node must not take
        the API away. Raises StoreUnavailable, and NotReady until the embedded data plane serves for the first time."""
        await self.ping(anonymous=anonymous)
        self._has_served = self._has_served or self._serves()
        if not self._has_served:
            raise NotReady("the embedded data plane does not serve yet")
        return Readiness("ready", self._changes(anonymous))

    async def fleet_health(self, *, anonymous: bool) -> FleetHealth:
        """Return whether every node is there and holds what the records ask for. Raises NotReady, StoreUnavailable."""
        await self.ping(anonymous=anonymous)  # the nodes are compared with the database
        progress = self._progress
        reasons = progress.unready_counts() if anonymous else progress.unready()
        changes = self._changes(anonymous)
        if reasons:
            raise NotReady("; ".join([*reasons, *([changes] if changes else [])]))
        nodes = self._fleet.nodes.values()
        states = {} if anonymous else {node.name: progress.state(node).value for node in nodes}
        return FleetHealth("ok", states, changes)

    def _changes(self, anonymous: bool) -> str:
        """Return why the database accepts no changes, or an empty string."""
        reason = self._database.watch.refuses_changes
        if reason and anonymous:
            return "the database takes no changes"
        return reason and f"the database takes no changes: {reason}"
