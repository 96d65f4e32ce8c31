"""/api/v1/usage"""

from typing import Annotated, Any, Literal

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter

from app.http.operation import operation
from app.http.parameters import OfTenant, moment_in_query
from app.http.principals import caller
from app.schemas.usage.reports import GroupBy, Step, UsageReport
from app.services.usage.reports import SECONDS, UsageReports, as_csv

CSV = "text/csv"


@operation(
    get,
    "/usage",
    "invalid",
    role="viewer",
    scoped=True,
    opt={"produces": (CSV,)},
    answers={200: ResponseSpec(UsageReport, generate_examples=False, description="As `text/csv`: one line per item.")},
    tags=["usage"],
)
async def get_usage(
    request: Request[Any, Any, Any],
    usage: NamedDependency[UsageReports],
    group_by: Annotated[GroupBy, QueryParameter(description="What each item describes.")] = "tenant",
    step: Annotated[Step, QueryParameter(description="Length of one time step.")] = "1h",
    start: Annotated[
        str,
        moment_in_query(
            "from",
            "Start: Unix seconds or RFC 3339. Defaults to a day before `to`, or 30 days for steps of a day.",
            SECONDS,
        ),
    ] = "",
    end: Annotated[str, moment_in_query("to", "End: Unix seconds or RFC 3339. Defaults to now.", SECONDS)] = "",
    tenant: OfTenant = None,
    format: Annotated[  # noqa: A002
        Literal["json", "csv"] | None,
        QueryParameter(description="Format of the answer; overrides the `Accept` header."),
    ] = None,
) -> Response[Any]:
    """Get usage by tenant, model or node, per hour or day (UTC), as JSON or CSV."""
    report = await usage.report(group_by, step, start, end, tenant, caller())
    if (format or _accepted(request)) == "csv":
        headers = {"Content-Disposition": f'attachment; filename="larder-usage-{step}.csv"', "Vary": "Accept"}
        return Response(as_csv(report), media_type=CSV, headers=headers)
    return Response(report, headers={"Vary": "Accept"})


def _accepted(request: Request[Any, Any, Any]) -> str:
    return "csv" if request.accept.best_match(["application/json", CSV]) == CSV else "json"
