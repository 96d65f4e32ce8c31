"""/healthz: this process works. /readyz: the nodes hold what was asked for."""

from litestar import get
from litestar.di import NamedDependency

from app import __version__
from app.errors import NotReady
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
    await database.ping()
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
    await database.ping()  # what is asked for is what the database says
    reasons = progress.unready()
    if reasons:
        raise NotReady("; ".join(reasons))
    return Ready("ready", {node.name: progress.state(node).value for node in fleet.nodes.values()})
