"""/healthz: this process works. /readyz: the nodes hold what was asked for.

Both answer everybody (setting `open_health`), and tell strangers no names: of nodes, or of where the database is.
"""

from litestar import get
from litestar.di import NamedDependency

from app import __version__
from app.errors import NotReady, StoreUnavailable
from app.http.callers import is_stranger
from app.http.problems import declared
from app.ingest.fleet import Fleet
from app.schemas.health import Health, Ready
from app.services.progress import Progress
from app.store.database import Database


@get(
    "/healthz",
    operation_id="getHealth",
    summary="The process is up and the database answers",
    opt={"role": "viewer", "scoped": True, "opened_by": "open_health"},
    responses=declared(),
    tags=["health"],
)
async def healthz(database: NamedDependency[Database]) -> Health:
    await ping(database)
    return Health("ok", __version__)


@get(
    "/readyz",
    operation_id="getReady",
    summary="Every living node acknowledged the current generations",
    opt={"role": "viewer", "scoped": True, "opened_by": "open_health"},
    responses=declared("not-ready"),
    tags=["health"],
)
async def readyz(
    database: NamedDependency[Database], progress: NamedDependency[Progress], fleet: NamedDependency[Fleet]
) -> Ready:
    await ping(database)  # what is asked for is what the database says
    reasons = progress.unready_counts() if is_stranger() else progress.unready()
    if reasons:
        raise NotReady("; ".join(reasons))
    if is_stranger():
        return Ready("ready", {})
    return Ready("ready", {node.name: progress.state(node).value for node in fleet.nodes.values()})


async def ping(database: Database) -> None:
    """Raises StoreUnavailable, which tells strangers no names."""
    try:
        await database.ping()
    except StoreUnavailable as error:
        if is_stranger():
            raise StoreUnavailable("the database does not answer") from error
        raise
