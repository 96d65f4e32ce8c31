"""/api/v1/snapshot"""

from typing import Annotated

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter

from app.http.body import StrictRequest
from app.http.middleware.disconnect import while_there
from app.http.operation import operation
from app.http.parameters import duration, in_query, wait_seconds
from app.http.principals import caller, until_answered
from app.schemas.views.snapshot import SnapshotAnswer
from app.services.base.concurrency_limiter import ConcurrencyLimiter
from app.services.views.snapshot import MAX_WAIT_S, Snapshots

INDEX_HEADER = "X-Larder-Index"


@operation(
    get,
    "/snapshot",
    "invalid",
    role="viewer",
    answers={200: ResponseSpec(SnapshotAnswer, generate_examples=False, description="A header repeats the index.")},
    tags=["snapshot"],
)
async def get_snapshot(
    request: StrictRequest,
    snapshots: NamedDependency[Snapshots],
    stream_slots: NamedDependency[ConcurrencyLimiter],
    index: Annotated[
        int,
        QueryParameter(
            ge=0,
            le=1 << 53,
            schema_extra={"maximum": 1 << 53},
            description="`index` of the last answer: wait for a newer state.",
        ),
    ] = 0,
    wait: Annotated[
        str,
        in_query(
            "With `index`: longest wait for a newer state (`30s`, `500ms`; at most 300 s, plus up to a sixteenth); "
            "then the answer is the current state.",
            duration(MAX_WAIT_S),
        ),
    ] = "60s",
) -> Response[bytes]:
    """Get all records and what nodes have applied; optionally wait for the next state."""
    await request.body()  # `while_there` needs its end
    if index:
        until_answered(stream_slots.taken(caller()))
    number, body = await while_there(request, snapshots.after(index, wait_seconds(wait, MAX_WAIT_S)))
    return Response(body, media_type="application/json", headers={INDEX_HEADER: str(number)})
