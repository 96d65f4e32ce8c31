"""/api/v1/events/history"""

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency

from app.http.operation import operation
from app.http.parameters import Cursor, Limit, OfNode, at_seconds, in_query, sort_by
from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventFilters, EventList
from app.services.views.events import SORTABLE, Events

_Sort = Annotated[str, sort_by(SORTABLE)]


@operation(get, "/events/history", "invalid", role="viewer", tags=["events"])
async def list_events(
    events: NamedDependency[Events],
    name: Annotated[
        str | None,
        in_query("Only events of this name; `push.*` selects all names that begin with `push.`.", max_length=128),
    ] = None,
    node: OfNode = None,
    actor: Annotated[str | None, in_query("Only this actor.", max_length=128)] = None,
    since: Annotated[float | None, at_seconds("Earliest time, in Unix seconds.")] = None,
    sort: _Sort = "",
    limit: Limit = 100,
    cursor: Cursor = "",
) -> EventList:
    """List stored events, newest first."""
    return await events.page(PageRequest(limit, cursor, sort), EventFilters(name, node, actor, since))
