"""/metrics for Prometheus, in the format that the scraper requests."""

from litestar import Response, get
from litestar.di import NamedDependency
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from app.http.body import StrictRequest


@get(
    "/metrics",
    include_in_schema=False,
    sync_to_thread=False,
    opt={"role": "viewer", "opened_by": "anonymous_metrics"},
)
def metrics(request: StrictRequest, registry: NamedDependency[CollectorRegistry]) -> Response[bytes]:
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"Content-Type": media_type}, media_type=media_type)
