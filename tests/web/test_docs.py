"""The API's documentation page works offline, under the content security policy of the real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.app.apart import serving_apart
from tests.require import require
from tests.web.player import DIST


@pytest.fixture
def real_server(socket_dir: Path) -> Iterator[str]:
    """The address of a real management plane."""
    require((DIST / "swagger" / "index.html").is_file(), "the documentation page is not built (make web)")
    with serving_apart(socket_dir) as url:
        yield url


def test_every_route_can_be_read_and_tried_with_nothing_from_outside(
    browser: Browser, real_server: str
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    page = context.new_page()
    complaints: list[str] = []
    foreign: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"uncaught: {error}"))
    page.on(
        "request",
        lambda request: None if request.url.startswith(real_server) else foreign.append(request.url),
    )
    page.goto(f"{real_server}/api/docs")
    quotas = page.locator("#operations-quotas-listQuotas")
    expect(quotas).to_be_visible()
    quotas.click()
    quotas.get_by_role("button", name="Execute").click()
    expect(quotas.locator(".live-responses-table")).to_contain_text('"total": 0')
    page.locator("#operations-quotas-patchQuota").click()
    expect(page.locator("#operations-quotas-patchQuota .body-param")).to_contain_text("8GiB")
    context.close()
    assert foreign == []
    assert complaints == []
