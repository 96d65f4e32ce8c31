"""/api/docs: Swagger UI for the API, served without any external resource."""

from litestar import Response, get
from litestar.di import NamedDependency

from app.http.web import WebFiles

_NOT_BUILT = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Larder's API</title>
<p>This page is not built: run <code>make web</code>, then load it again. The description itself is at
<a href="/api/openapi.json">/api/openapi.json</a>.</html>
"""


@get("/api/docs", include_in_schema=False, opt={"role": "anyone"})
async def docs(web_files: NamedDependency[WebFiles]) -> Response[bytes]:
    """Return Swagger UI, which `make web` places beside the dashboard."""
    file = web_files.find("swagger/index.html")
    body = _NOT_BUILT if file is None else file.read_bytes()
    return Response(body, media_type="text/html", headers={"Cache-Control": "no-cache"})
