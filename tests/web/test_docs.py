"""The API's documentation page works offline, under the content security policy of the real server."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.app.plane import serving, settings_in
from tests.require import require
from tests.web.player import DIST


@pytest.fixture
def real_server(socket_dir: Path) -> Iterator[str]:
    """The address of a real management plane that runs in a thread: the browser's test is not asynchronous."""
    require((DIST / "swagger" / "index.html").is_file(), "the documentation page is not built (make web)")
    started: list[str] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        async with serving(settings_in(socket_dir)) as plane:
            started.append(str(plane.http.base_url))
            ready.set()
            await done.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(30)
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(30)


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
