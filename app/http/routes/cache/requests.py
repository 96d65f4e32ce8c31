"""/api/v1/requests"""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.operation import operation
from app.http.parameters import OfNode, in_query
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.cache.requests import RequestList
from app.services.cache.requests import RequestFinder
from dataplane.protocol.control.requests import MAX_REQUEST_ID_CHARACTERS


@operation(get, "/", "not-found", "invalid", "node-unreachable", role="viewer", scoped=True)
async def find_requests(
    request_records: NamedDependency[RequestFinder],
    request_id: Annotated[
        str,
        in_query(
            "The id of the request, as the engine's response has it, or the engine's own longer id.",
            r"[^\x00]+",
            name="id",
            min_length=1,
            max_length=MAX_REQUEST_ID_CHARACTERS,
        ),
    ],
    node: OfNode = None,
) -> RequestList:
    """Find what a request got from the cache, and why not more. Nodes remember the last 4,096 requests of engines."""
    with span("requests.find"):
        return await request_records.find(request_id, node, caller())


router = Router("/requests", route_handlers=[find_requests], tags=["requests"])
