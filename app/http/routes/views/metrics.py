"""/metrics for Prometheus, in the format that the scraper prefers, compressed if it can read that."""

import asyncio
import gzip

from litestar import Response, get
from litestar.di import NamedDependency
from prometheus_client.exposition import choose_encoder

from app.http.body import StrictRequest
from app.http.negotiation import preferred
from app.observe.page import OPENMETRICS, TEXT
from app.observe.scrapes import Scrapes

_LEVEL = 1
"""Numbers compress almost as well at the fastest level."""


@get("/metrics", include_in_schema=False, opt={"role": "viewer", "opened_by": "anonymous_metrics"})
async def metrics(request: StrictRequest, scrapes: NamedDependency[Scrapes]) -> Response[bytes]:
    headers = request.headers
    # Do not pass the header on: the library ignores `q` and raises TypeError if a version is not a number.
    chosen = preferred(headers.get("accept", ""), (TEXT, OPENMETRICS))
    _, media_type = choose_encoder(chosen)
    page = await scrapes.page(openmetrics=chosen == OPENMETRICS)
    answered = {"Content-Type": media_type, "Vary": "Accept, Accept-Encoding"}
    if preferred(headers.get("accept-encoding", ""), ("identity", "gzip")) == "gzip":
        answered["Content-Encoding"] = "gzip"
        page = await asyncio.to_thread(gzip.compress, page, _LEVEL)
    return Response(page, headers=answered, media_type=media_type)
