"""/healthz: this process works. /readyz: it serves the API, and its data plane has served. /healthz/fleet: the nodes
hold what the records ask for.

They answer without a token (setting `anonymous_health`).
"""

from litestar import get
from litestar.di import NamedDependency

from app.http.principals import is_anonymous
from app.http.problems import declared
from app.schemas.views.health import FleetHealth, Health, Readiness
from app.services.views.health import HealthChecks


@get(
    "/healthz",
    operation_id="getHealth",
    summary="Check that the process runs and the database answers",
    opt={"role": "viewer", "scoped": True, "opened_by": "anonymous_health"},
    responses=declared(),
    tags=["health"],
)
async def healthz(health: NamedDependency[HealthChecks]) -> Health:
    return await health.health(anonymous=is_anonymous())


@get(
    "/readyz",
    operation_id="getReady",
    summary="Check that this process serves the API, whatever the state of the nodes, and that the embedded data plane "
    "has served",
    opt={"role": "viewer", "scoped": True, "opened_by": "anonymous_health"},
    responses=declared("not-ready"),
    tags=["health"],
)
async def readyz(health: NamedDependency[HealthChecks]) -> Readiness:
    return await health.readiness(anonymous=is_anonymous())


@get(
    "/healthz/fleet",
    operation_id="getFleetHealth",
    summary="No node is lost, and every node acknowledged the current generations",
    opt={"role": "viewer", "scoped": True, "opened_by": "anonymous_health"},
    responses=declared("not-ready"),
    tags=["health"],
)
async def fleet_healthz(health: NamedDependency[HealthChecks]) -> FleetHealth:
    return await health.fleet_health(anonymous=is_anonymous())
