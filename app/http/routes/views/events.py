"""/api/v1/events/history"""

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from app.http.operation import operation
from app.http.parameters import Cursor, Limit, Sort
from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventFilters, EventList
from app.services.views.events import Events


@operation(get, "/events/history", "invalid", role="viewer", tags=["events"])
async def list_events(
    events: NamedDependency[Events],
    name: Annotated[
        str | None,
        QueryParameter(
            max_length=128, description="Only events of this name; `push.*` selects all names that begin with `push.`."
        ),
    ] = None,
    node: Annotated[str | None, QueryParameter(max_length=128, description="Only this node.")] = None,
    actor: Annotated[str | None, QueryParameter(max_length=128, description="Only this actor.")] = None,
    since: Annotated[float | None, QueryParameter(ge=0, le=1e11, description="Earliest time, in Unix seconds.")] = None,
    sort: Sort = "",
    limit: Limit = 100,
    cursor: Cursor = "",
) -> EventList:
    """List stored events, newest first."""
    return await events.page(PageRequest(limit, cursor, sort), EventFilters(name, node, actor, since))
