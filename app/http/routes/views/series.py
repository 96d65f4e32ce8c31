"""/api/v1/series"""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from app.http.middleware.turns import in_turn
from app.http.operation import operation
from app.http.parameters import at_seconds
from app.http.principals import caller
from app.observe.series import SERIES
from app.schemas.views.series import SeriesAnswer, SeriesNames
from app.services.views.series import MAX_NAMES, MAX_RANGE_S, MAX_SCOPES, SeriesQuery, SeriesService

_NAMES = {"items": {"type": "string", "pattern": r"^[^\x00]*$"}}


@operation(get, "/", "invalid", role="viewer", scoped=True, middleware=[in_turn])
async def get_series(
    series: NamedDependency[SeriesService],
    name: Annotated[
        list[str],
        QueryParameter(
            min_items=1,
            schema_extra={"items": {"type": "string", "enum": list(SERIES)}},
            max_items=MAX_NAMES,
            description="Name of a series, from `GET /api/v1/series/names`; repeatable.",
        ),
    ],
    node: Annotated[
        list[str] | None,
        QueryParameter(
            max_items=MAX_SCOPES, schema_extra=_NAMES, description="Add the series of this node; repeatable."
        ),
    ] = None,
    tenant: Annotated[
        list[str] | None,
        QueryParameter(
            max_items=MAX_SCOPES,
            schema_extra=_NAMES,
            description=(
                "Add the series of this tenant, as shown; repeatable. `/other` is the sum of those without series "
                "of their own. Without `node` and `tenant`, the answer is about all nodes and tenants."
            ),
        ),
    ] = None,
    range_s: Annotated[
        int, QueryParameter(ge=10, le=MAX_RANGE_S, description="Seconds to look back from `end`: at most 30 days.")
    ] = 3600,
    step_s: Annotated[
        int | None,
        QueryParameter(
            ge=10,
            le=MAX_RANGE_S,
            schema_extra={"multipleOf": 10},
            description=(
                "Seconds between points: a multiple of 10, or of 300 for times more than a day ago. By default the "
                "smallest for at most 720 points. If the points of a time are further apart, their values are repeated."
            ),
        ),
    ] = None,
    end: Annotated[float | None, at_seconds("Newest time, in Unix seconds. Defaults to now.")] = None,
) -> SeriesAnswer:
    """Get series for charts with the changes, alerts, crashes and restarts of the same time."""
    return await series.answer(SeriesQuery(name, node or [], tenant or [], range_s, step_s, end), caller())


@operation(get, "/names", role="viewer", scoped=True)
async def list_series_names(series: NamedDependency[SeriesService]) -> SeriesNames:
    """List the names of the series with their units and meanings."""
    return series.names(caller())


router = Router("/series", route_handlers=[get_series, list_series_names], tags=["series"])
