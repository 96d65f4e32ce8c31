"""The documentation that Larder serves: the runbook that alerts link to, its anchors and its links."""

import re
from hashlib import sha256
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
import yaml

from tests.app.plane import Plane

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
RULES = ROOT / "deploy" / "prometheus" / "larder.rules.yml"


def linked(text: str) -> set[str]:
    """Return the runbook links of alert rules, without their server."""
    groups = yaml.safe_load(text)["groups"]
    urls = {rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule}
    return {f"{urlsplit(url).path}#{urlsplit(url).fragment}" for url in urls}


def diagrams(page: Path) -> list[str]:
    return re.findall(r"^```mermaid\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


async def test_every_alert_leads_to_a_heading_of_a_page_that_is_served(shared_plane: Plane) -> None:
    for link in sorted(linked(RULES.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        response = await shared_plane.others.get(path)
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert f'<h2 id="{anchor}">' in response.text


async def test_links_between_pages_lead_to_pages_and_anchors(shared_plane: Plane) -> None:
    texts: dict[str, str] = {}
    waiting = {"/docs/operate/runbook.md"}
    missing = []
    links = set()
    while waiting:
        path = waiting.pop()
        response = await shared_plane.http.get(path)
        texts[path] = response.text if response.status_code == 200 else ""
        for link in re.findall(r'<a href="([^"]+)"', texts[path]):
            target = urlsplit(urljoin(path, link))
            if not target.scheme and target.path.startswith("/docs/"):
                links.add((path, target.path, target.fragment))
                waiting |= {target.path} - texts.keys()
    for path, page, anchor in links:
        if not texts[page] or (anchor and f'id="{anchor}"' not in texts[page]):
            missing.append((path, page, anchor))
    assert len(texts) > 30
    assert missing == []


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
async def test_the_folder_leads_to_the_first_page(shared_plane: Plane, path: str) -> None:
    response = await shared_plane.others.get(path)
    assert response.is_redirect
    page = await shared_plane.others.get(response.headers["location"])
    assert page.status_code == 200
    assert "<h1" in page.text


async def test_text_of_a_page_is_formatted_and_its_style_is_served(shared_plane: Plane) -> None:
    page = await shared_plane.http.get("/docs/operate/runbook.md")
    assert "<title>Alerts and runbook · Larder</title>" in page.text
    assert "<code>LarderDown</code>" in page.text
    style = await shared_plane.http.get("/docs/manual.css")
    assert style.headers["content-type"] == "text/css; charset=utf-8"


async def test_diagrams_are_pictures_that_need_no_other_host(plane: Plane) -> None:
    pages = [path for path in sorted(DOCS.rglob("*.md")) if diagrams(path)]
    assert len(pages) >= 2
    for path in pages:
        page = await plane.http.get(f"/docs/{path.relative_to(DOCS)}")
        sources = re.findall(r'<img src="([^"]+)"', page.text)
        assert len(sources) == len(diagrams(path))
        assert "language-mermaid" not in page.text
        for source, text in zip(sources, diagrams(path), strict=True):
            picture = await plane.http.get(source)
            assert picture.headers["content-type"].startswith("image/svg+xml")
            made_from = f"<!-- sha256 of its text: {sha256(text.encode()).hexdigest()} -->"
            assert made_from in picture.text, f"{path} was changed: run 'make generated'"
            linked = re.findall(r"""(?:href|src)=["'](?!#)|@import|url\((?!#)|<script""", picture.text)
            assert linked == []


async def test_pictures_of_the_dashboard_are_served(plane: Plane) -> None:
    page = await plane.http.get("/docs/operate/dashboard.md")
    pictures = re.findall(r'<img src="\.\./(pictures/dashboard/[^"]+)"', page.text)
    assert len(pictures) == 3
    for picture in pictures:
        reply = await plane.http.get(f"/docs/{picture}")
        assert reply.headers["content-type"] == "image/png"
        assert reply.content.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "path", ["nowhere.md", "generate.py", "operate", "../pyproject.toml", "..%2fREADME.md", "operate/%2e%2e/x.md"]
)
async def test_only_pages_are_served(shared_plane: Plane, path: str) -> None:
    response = await shared_plane.http.get(f"/docs/{path}", headers={"accept": "application/json"})
    assert response.status_code in (400, 404)
