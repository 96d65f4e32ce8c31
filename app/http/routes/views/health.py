"""/healthz: this process works. /readyz: it serves the API, and its data plane has served. /healthz/fleet: the nodes
hold what the records ask for.

They answer without a token (setting `anonymous_health`).
"""

from litestar import get
from litestar.di import NamedDependency

from app.http.operation import operation
from app.http.principals import is_anonymous
from app.schemas.views.health import FleetHealth, Health, Readiness
from app.services.views.health import HealthChecks


@operation(get, "/healthz", role="viewer", scoped=True, opt={"opened_by": "anonymous_health"}, tags=["health"])
async def get_health(health: NamedDependency[HealthChecks]) -> Health:
    """Check that the process runs and the database answers."""
    return await health.health(anonymous=is_anonymous())


@operation(
    get, "/readyz", "not-ready", role="viewer", scoped=True, opt={"opened_by": "anonymous_health"}, tags=["health"]
)
async def get_ready(health: NamedDependency[HealthChecks]) -> Readiness:
    """Check that this process serves the API, whatever the state of the nodes, and that the embedded data plane has
    served."""
    return await health.readiness(anonymous=is_anonymous())


@operation(
    get,
    "/healthz/fleet",
    "not-ready",
    role="viewer",
    scoped=True,
    opt={"opened_by": "anonymous_health"},
    tags=["health"],
)
async def get_fleet_health(health: NamedDependency[HealthChecks]) -> FleetHealth:
    """No node is lost, and every node acknowledged the current generations."""
    return await health.fleet_health(anonymous=is_anonymous())
