"""/docs: the documentation as pages, for the links of alerts. The pages need no other server, so that the runbook can
be read in a network that cannot reach the internet.

A page has the path of its file in the project, such as `/docs/operate/runbook.md`. Relative links between files
therefore work between pages, and the link of an alert works with this server and with a copy of the project.

Diagrams are pictures in `docs/pictures`, which `make generated` draws from the text of the pages; pictures of the
dashboard are in `docs/pictures/dashboard`.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from itertools import pairwise
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import urlsplit

from litestar import Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Redirect
from markdown_it import MarkdownIt
from markdown_it.token import Token

from app.http.web import WebFiles

_INSTALLED = Path(__file__).parents[1] / "manual"
_IN_PROJECT = Path(__file__).parents[2] / "docs"
MAX_PAGES = 64
"""Maximum number of rendered pages that are kept."""
STYLE = """:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8886; border-radius: 4px; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
img { max-width: 100%; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid #8886; padding: .3rem .6rem; text-align: left; vertical-align: top; }
:target { background: #fd03; }
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title} · Larder</title><link rel="stylesheet" href="/docs/manual.css"></head>
<body><nav><a href="/">Dashboard</a> · <a href="/docs/index.md">Documentation</a>
· <a href="/docs/operate/runbook.md">Runbook</a></nav>
<main>
{body}</main></body></html>
"""
_HEADERS = {"Cache-Control": "no-cache"}
_PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}


@get("/docs", include_in_schema=False, opt={"role": "anyone"}, status_code=307, sync_to_thread=False)
def manual_start() -> Redirect:
    """Lead to the first page of the documentation."""
    return Redirect("/docs/index.md")


@get("/docs/{path:path}", include_in_schema=False, opt={"role": "anyone"}, sync_to_thread=True)
def manual(path: FromPath[str]) -> Response[str | bytes]:
    """Return a page or a picture of the documentation, or the style sheet of all pages. Raises NotFoundException."""
    path = path.lstrip("/")
    if path == "manual.css":
        return Response(STYLE, media_type="text/css", headers=_HEADERS)
    folder = _INSTALLED if _INSTALLED.is_dir() else _IN_PROJECT
    file = WebFiles(folder).find(path)
    if file is not None and file.suffix in _PICTURES:
        return Response(file.read_bytes(), media_type=_PICTURES[file.suffix], headers=_HEADERS)
    if file is None or file.suffix != ".md":
        raise NotFoundException
    page = _rendered(file, folder, path, file.stat().st_mtime_ns)
    return Response(page, media_type="text/html", headers=_HEADERS)


@lru_cache(MAX_PAGES)
def _rendered(file: Path, folder: Path, path: str, _modified_ns: int) -> str:
    return page_of(file.read_text(encoding="utf-8"), folder, path)


def page_of(text: str, folder: Path, path: str) -> str:
    """Return a Markdown file as an HTML page. `path` is its path below `folder`, that of the documentation. Headings
    have the anchors that MkDocs gives them."""
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    title = path
    for opening, content in pairwise(tokens):
        if opening.type == "heading_open":
            heading = "".join(child.content for child in content.children or ())
            opening.attrs["id"] = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
            title = heading if opening.tag == "h1" else title
    _drop_outer_links(tokens, dirname(path))
    _show_diagrams(tokens, folder, path)
    body = markdown.renderer.render(tokens, markdown.options, {})
    return _PAGE.format(title=escape(title), body=body)


def _drop_outer_links(tokens: Iterable[Token], folder: str) -> None:
    """Replace links to files outside of the documentation by their text, because these files are not served."""
    for link in (child for token in tokens for child in token.children or () if child.type == "link_open"):
        target = urlsplit(str(link.attrs.get("href", "")))
        if not target.scheme and target.path and normpath(join(folder, target.path)).startswith(".."):
            del link.attrs["href"]


def _show_diagrams(tokens: Iterable[Token], folder: Path, path: str) -> None:
    """Replace the text of each diagram by its picture, if there is one."""
    diagrams = (token for token in tokens if token.type == "fence" and token.info.strip() == "mermaid")
    for number, token in enumerate(diagrams, 1):
        picture = f"pictures/{path.removesuffix('.md').replace('/', '-')}-{number}.svg"
        if (folder / picture).is_file():
            token.type = "html_block"
            token.content = f'<p><img src="/docs/{escape(picture)}" alt="Diagram"></p>\n'
