"""/api/v1/overview"""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from app.http.middleware.turns import in_turn
from app.http.principals import caller
from app.http.problems import declared
from app.schemas.views.overview import Overview, Series
from app.services.views.overview import OverviewService
from app.services.views.series import SeriesService


@get(
    "/",
    operation_id="getOverview",
    summary="Get the current state that the dashboard shows",
    opt={"role": "viewer", "scoped": True},
    middleware=[in_turn],
    responses=declared(),
)
async def get_overview(overview: NamedDependency[OverviewService]) -> Overview:
    return await overview.now(caller())


@get(
    "/history",
    operation_id="getHistory",
    summary="Get series for charts, oldest first",
    opt={"role": "viewer"},
    responses=declared("invalid"),
)
async def get_history(
    series: NamedDependency[SeriesService],
    seconds: Annotated[
        float, QueryParameter(gt=0, le=86_400, description="Seconds to look back; one hour is kept.")
    ] = 3600,
) -> Series:
    return await series.history(seconds, caller())


router = Router("/overview", route_handlers=[get_overview, get_history], tags=["overview"])
