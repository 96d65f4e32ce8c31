"""/api/v1/apply and /api/v1/export"""

import asyncio
from typing import Annotated, TypeVar, cast

import msgspec
from litestar import Response, Router, get, post
from litestar.di import NamedDependency
from litestar.enums import MediaType
from litestar.params import JSONBody, QueryParameter

from app.http.body import StrictRequest
from app.http.middleware.disconnect import while_there
from app.http.middleware.turns import in_turn
from app.http.operation import operation
from app.http.parameters import OfOwner, Wait, wait_seconds
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.documents.apply import ApplyAnswer, ApplyPut, ExportAnswer
from app.schemas.fleet.pushes import TypeName
from app.services.documents.apply import Apply
from app.services.documents.export import Export


@operation(post, "/apply", "conflict", "floors-exceed-capacity", "precondition-failed", role="viewer", scoped=True)
async def apply_document(
    request: StrictRequest, apply: NamedDependency[Apply], data: JSONBody[ApplyPut], wait: Wait = ""
) -> Response[ApplyAnswer]:
    """Apply a document: all of its changes, or none."""
    wait_s = wait_seconds(wait)
    with span("apply"):
        work = apply.apply(data, caller(), wait_s)
        answer = await (while_there(request, work) if data.dry_run else work)
    return await _encoded(answer)


@operation(get, "/export", "invalid", role="viewer", scoped=True, middleware=[in_turn])
async def export_document(
    export: NamedDependency[Export],
    types: Annotated[
        list[TypeName] | None, QueryParameter(name="type", description="Only records of this type; may be repeated.")
    ] = None,
    managed_by: OfOwner = None,
) -> Response[ExportAnswer]:
    """Export records as a document that can be applied."""
    return await _encoded(await export.export(types or [], managed_by, caller()))


T = TypeVar("T", bound=msgspec.Struct)


async def _encoded(answer: T) -> Response[T]:
    """Return the answer, encoded in a thread because it may be large."""
    content = await asyncio.to_thread(msgspec.json.encode, answer)
    return cast(Response[T], Response(content, media_type=MediaType.JSON))


def router(body_limit_bytes: int) -> Router:
    """Return the router, with its own body limit: documents may be larger than other bodies."""
    return Router(
        "/", route_handlers=[apply_document, export_document], request_max_body_size=body_limit_bytes, tags=["as code"]
    )
