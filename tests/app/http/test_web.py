"""How the dashboard's files are served."""

from pathlib import Path

import pytest

from tests.app.plane import serving, settings_in

pytestmark = pytest.mark.anyio


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>index")
    (folder / "assets" / "app-1a2b.js").write_text("export {}")
    (tmp_path / "secret").write_text("secret")
    return folder


async def test_the_files_of_its_folder_alone_are_served_and_assets_are_cached_for_ever(
    socket_dir: Path, dist: Path
) -> None:
    async with serving(settings_in(socket_dir, web_dist=str(dist))) as plane:
        page = {"accept": "text/html"}
        response = await plane.http.get("/", headers=page)
        assert response.text == "<!doctype html>index"
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["content-security-policy"].startswith("default-src 'self'")
        response = await plane.http.get("/tenants/a%20b%0d%0ac", headers=page, follow_redirects=False)
        assert (response.status_code, response.headers["location"]) == (302, "/#/tenants/a%20b%0D%0Ac")
        asset = await plane.http.get("/assets/app-1a2b.js")
        assert asset.headers["content-type"] == "text/javascript; charset=utf-8"
        assert "immutable" in asset.headers["cache-control"]
        assert asset.headers["x-content-type-options"] == "nosniff"
        assert (await plane.http.get("/api/v2", headers=page)).status_code == 404
        for path in ("/../secret", "/assets/..%2f..%2fsecret", "/%2e%2e/secret", "//../secret"):
            outside = await plane.http.get(path, headers={"accept": "application/json"})
            assert outside.status_code in (400, 404), path


async def test_a_dashboard_that_is_not_built_shows_how_to_build_it(socket_dir: Path, tmp_path: Path) -> None:
    async with serving(settings_in(socket_dir, web_dist=str(tmp_path / "none"))) as plane:
        response = await plane.http.get("/")
        assert response.status_code == 200
        assert "make web" in response.text
