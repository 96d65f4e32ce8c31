"""The dashboard of a real Larder in a browser: open it, go to a page, press what is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from tests.conftest import BROWSER_LIMIT_MS
from tests.e2e.larder import Larder
from tests.web.watch import Watch


@contextmanager
def visited(larder: Larder, browser: Browser, *, expects_failures: bool = True, **options: Any) -> Iterator[Page]:
    """The live page, in which nothing may go wrong but requests that are refused."""
    viewport: ViewportSize = {"width": options.pop("width", 1440), "height": 1000}
    context = browser.new_context(viewport=viewport, reduced_motion="reduce", **options)
    context.set_default_timeout(BROWSER_LIMIT_MS)
    try:
        watch = Watch(context.new_page(), larder.url, expects_failures=expects_failures)
        watch.page.goto(larder.url)
        yield watch.page
    finally:
        context.close()
    watch.check()


@contextmanager
def opened(larder: Larder, browser: Browser, token: str = "", **options: Any) -> Iterator[Page]:
    """The live page with its numbers; with a token after a login."""
    with visited(larder, browser, **options) as page:
        if token:
            log_in(page, token)
        page.locator("#verdict-title").wait_for()
        yield page


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_label("Token").press("Enter")


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


def panel(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def ask(page: Page, button: str, title: str = "") -> Locator:
    """Press a button, and return the dialog that it opens; its title is the text of the button by default."""
    press(page, button)
    return dialog(page, title or button)


def fill(form: Locator, **values: str) -> None:
    """Fill fields of a form."""
    for field, value in values.items():
        form.locator(f"#field-{field}").fill(value)


def check_refused(form: Locator, field: str, text: str) -> None:
    """Check a form, and that it says this of a field."""
    press(form, "Check")
    expect(form.locator(f"#field-{field}-faults")).to_contain_text(text)


def save(form: Locator, node: str = "") -> None:
    """Check, save and close a form; with a node, that would accept it first and has applied it at the end."""
    press(form, "Check")
    if node:
        expect(form.get_by_text(f"{node} would accept it")).to_be_visible()
    press(form, "Save")
    if node:
        expect(form.get_by_text(f"{node} has applied it")).to_be_visible()
    press(form, "Done")
