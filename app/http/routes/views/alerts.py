"""/api/v1/alerts and /api/v1/annotations"""

from typing import Annotated

from litestar import Router, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from app.http.operation import operation
from app.http.parameters import Cursor, Limit, OfNode, in_query, moment_in_query, sort_by
from app.http.principals import caller
from app.schemas.base.listing import PageRequest
from app.schemas.views.alerts import AlertFilters, AlertList, AlertsPost, AlertsTaken, AlertState
from app.schemas.views.changes import Annotation
from app.services.views.alerts import SORTABLE, Alerts
from app.services.views.applied_changes import AppliedChanges

_Sort = Annotated[str, sort_by(SORTABLE)]


@operation(post, "/", role="operator", opt={"also": "alerts"})
async def post_alerts(alerts: NamedDependency[Alerts], data: JSONBody[AlertsPost]) -> AlertsTaken:
    """Webhook of Alertmanager (version 4) and Grafana alerting: store firing and resolved alerts."""
    return await alerts.take(data)


@operation(get, "/", "invalid", role="viewer", scoped=True)
async def list_alerts(
    alerts: NamedDependency[Alerts],
    in_state: Annotated[
        AlertState | None, QueryParameter(name="state", description="Only alerts in this state.")
    ] = None,
    node: OfNode = None,
    tenant: Annotated[str | None, in_query("Only of this tenant, as shown.", max_length=128)] = None,
    sort: _Sort = "",
    limit: Limit = 100,
    cursor: Cursor = "",
) -> AlertList:
    """List alerts with the changes that preceded them, newest first."""
    return await alerts.page(PageRequest(limit, cursor, sort), AlertFilters(in_state, node, tenant), caller())


@operation(get, "/annotations", "invalid", role="viewer", scoped=True, tags=["alerts"])
async def list_annotations(
    applied_changes: NamedDependency[AppliedChanges],
    start: Annotated[
        str,
        moment_in_query("from", "Start: Unix milliseconds or RFC 3339. Defaults to a day before `to`.", "[0-9]{1,14}"),
    ] = "",
    end: Annotated[
        str, moment_in_query("to", "End: Unix milliseconds or RFC 3339. Defaults to now.", "[0-9]{1,14}")
    ] = "",
    tags: Annotated[
        str,
        in_query(
            "Only changes with all of these tags, with commas between them: `tenant:acme,type:quota`.", max_length=512
        ),
    ] = "",
    limit: Limit = 200,
) -> list[Annotation]:
    """List applied changes as annotations for Grafana, oldest first."""
    required_tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    return await applied_changes.annotations(start, end, required_tags, limit, caller())


router = Router("/alerts", route_handlers=[post_alerts, list_alerts], tags=["alerts"])
