"""/healthz: this process works. /readyz: the nodes hold what the records ask for.

Both answer without a token (setting `anonymous_health`). Unauthenticated callers see neither the names of nodes nor the
location of the database.
"""

from litestar import get
from litestar.di import NamedDependency

from app import __version__
from app.errors import NotReady, StoreUnavailable
from app.http.principals import is_stranger
from app.http.problems import declared
from app.ingest.fleet import Fleet
from app.schemas.views.health import Health, Readiness
from app.services.records.progress import RecordProgress
from app.store.base.database import Database


@get(
    "/healthz",
    operation_id="getHealth",
    summary="The process is up and the database answers",
    opt={"role": "viewer", "scoped": True, "opened_by": "anonymous_health"},
    responses=declared(),
    tags=["health"],
)
async def healthz(database: NamedDependency[Database]) -> Health:
    await ping(database)
    return Health("ok", __version__, database.origin)


@get(
    "/readyz",
    operation_id="getReady",
    summary="Every living node acknowledged the current generations",
    opt={"role": "viewer", "scoped": True, "opened_by": "anonymous_health"},
    responses=declared("not-ready"),
    tags=["health"],
)
async def readyz(
    database: NamedDependency[Database],
    progress: NamedDependency[RecordProgress],
    fleet: NamedDependency[Fleet],
) -> Readiness:
    await ping(database)  # readiness compares the nodes with the database
    reasons = progress.unready_counts() if is_stranger() else progress.unready()
    changes = _changes(database)
    if reasons:
        raise NotReady("; ".join([*reasons, *([changes] if changes else [])]))
    nodes = {} if is_stranger() else {node.name: progress.state(node).value for node in fleet.nodes.values()}
    return Readiness("ready", nodes, changes)


def _changes(database: Database) -> str:
    """Return why the database accepts no changes, or an empty string. Unauthenticated callers get a reason without
    names."""
    reason = database.watch.refuses_changes
    if reason and is_stranger():
        return "the database takes no changes"
    return reason and f"the database takes no changes: {reason}"


async def ping(database: Database) -> None:
    """Query the database. Raises StoreUnavailable, without names for unauthenticated callers."""
    try:
        await database.ping()
    except StoreUnavailable as error:
        if is_stranger():
            raise StoreUnavailable("the database does not answer") from error
        raise
