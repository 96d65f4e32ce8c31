"""Serve the built dashboard, and Swagger UI beside it. The dashboard's pages are fragments of one page, such as
`/#/nodes`; `/nodes` is redirected there."""

import mimetypes
from pathlib import Path
from urllib.parse import quote

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Redirect

from app.http.body import StrictRequest


class WebFiles(msgspec.Struct, frozen=True):
    """The folder of the built dashboard."""

    folder: Path

    def find(self, path: str) -> Path | None:
        """Return a file below the folder, or None. Never returns a file outside of the folder."""
        root = self.folder.resolve()
        try:
            file = (root / path.lstrip("/")).resolve()
            return file if file.is_relative_to(root) and file.is_file() else None
        except (OSError, ValueError):  # not a file name: too long, or not encodable
            return None


NOT_BUILT = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Larder</title>
<h1>Larder is running</h1><p>The dashboard is not built: run <code>make web</code>, then load this page again.
<p>The API is at <a href="/api/v1/overview">/api/v1/overview</a>.</html>
"""
DOCS_NOT_BUILT = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Larder's API</title>
<p>This page is not built: run <code>make web</code>, then load it again. The description itself is at
<a href="/api/openapi.json">/api/openapi.json</a>.</html>
"""
IMMUTABLE = "public, max-age=31536000, immutable"
# Fixed here because some machines map .js to text/plain.
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


@get("/api/docs", include_in_schema=False, opt={"role": "anyone"})
async def docs(web_files: NamedDependency[WebFiles]) -> Response[bytes]:
    """Return Swagger UI, which `make web` places beside the dashboard."""
    file = web_files.find("swagger/index.html")
    body = DOCS_NOT_BUILT if file is None else file.read_bytes()
    return Response(body, media_type="text/html", headers={"Cache-Control": "no-cache"})


@get("/", include_in_schema=False, opt={"role": "anyone"})
async def home(request: StrictRequest, web_files: NamedDependency[WebFiles]) -> Response[bytes] | Redirect:
    """Return the start page of the dashboard."""
    return serve(request, web_files, "/")


@get("/{path:path}", include_in_schema=False, opt={"role": "anyone"})
async def page(
    request: StrictRequest, web_files: NamedDependency[WebFiles], path: FromPath[str]
) -> Response[bytes] | Redirect:
    """Return a file, or redirect to a page of the dashboard."""
    return serve(request, web_files, path)


def serve(request: StrictRequest, web_files: WebFiles, path: str) -> Response[bytes] | Redirect:
    """Return a file if there is one, otherwise redirect requests that accept HTML. Raises NotFoundException."""
    if path.startswith("/api/") or path == "/api":
        raise NotFoundException
    file = web_files.find(path) if path != "/" else None
    if file is not None and file.name != "index.html":
        # Vite puts a hash of the content into the names of assets.
        cache = IMMUTABLE if path.startswith("/assets/") else "no-cache"
        return _file(file, cache)
    is_page = path == "/" or "text/html" in request.headers.get("accept", "")
    if path.startswith("/assets/") or not is_page:
        raise NotFoundException
    if path != "/" and file is None:
        return Redirect(f"/#{quote(path)}")
    index = web_files.find("index.html")
    if index is None:
        return Response(NOT_BUILT, media_type="text/html", headers={"Cache-Control": "no-store"})
    return _file(index, "no-cache")


def _file(file: Path, cache: str) -> Response[bytes]:
    kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return Response(file.read_bytes(), media_type=kind, headers={"Cache-Control": cache})
