"""The dashboard of a real Larder in a browser: open it, go to a page, press what is there."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, ViewportSize

from tests.e2e.conftest import LIMIT_MS
from tests.e2e.larder import Larder


@contextmanager
def opened(larder: Larder, browser: Browser, token: str = "", **options: Any) -> Iterator[Page]:
    """The live page; with a token after a login. Nothing may be thrown, and nothing foreign requested."""
    thrown: list[str] = []
    foreign: list[str] = []
    viewport: ViewportSize = {"width": options.pop("width", 1440), "height": 1000}
    context = browser.new_context(viewport=viewport, reduced_motion="reduce", **options)
    context.set_default_timeout(LIMIT_MS)
    with ExitStack() as stack:
        stack.callback(context.close)
        page = context.new_page()
        page.on("pageerror", lambda error: thrown.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(larder.url) else foreign.append(request.url))
        page.goto(larder.url)
        if token:
            page.get_by_label("Token").fill(token)
            page.get_by_label("Token").press("Enter")
        page.locator("#verdict-title").wait_for()
        yield page
    assert thrown == []
    assert foreign == []


def dialog(page: Page, title: str) -> Locator:
    found = page.get_by_role("dialog", name=title)
    found.wait_for()
    return found


def go(page: Page, at: str) -> None:
    """Open a page of the dashboard, such as `tenants/acme`."""
    page.goto(f"{page.url.partition('#')[0]}#/{at}")
    page.get_by_role("main").locator("section").first.wait_for()


def press(place: Page | Locator, name: str) -> None:
    place.get_by_role("button", name=name, exact=True).click()


def shot(page: Page, name: str) -> None:
    if folder := os.environ.get("LARDER_TEST_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def fits(page: Page) -> bool:
    """Whether nothing is wider than the window or the open dialog."""
    wide: list[str] = page.evaluate(
        """() => [document.documentElement, document.querySelector('dialog')]
             .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.tagName)"""
    )
    return wide == []
