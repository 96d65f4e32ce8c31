"""/api/v1/overview"""

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.middleware.turns import in_turn
from app.http.operation import operation
from app.http.principals import caller
from app.schemas.views.overview import Overview
from app.services.views.overview import OverviewService


@operation(get, "/", role="viewer", scoped=True, middleware=[in_turn])
async def get_overview(overview: NamedDependency[OverviewService]) -> Overview:
    """Get the current state that the dashboard shows."""
    return await overview.now(caller())


router = Router("/overview", route_handlers=[get_overview], tags=["overview"])
