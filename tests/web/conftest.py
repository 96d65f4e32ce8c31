"""A browser, and pages that watch themselves: any message on the console, failed request or foreign address fails."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.require import require
from tests.web.player import DIST, Player, playing


class Watched:
    """A page, the server that it talks to, and what went wrong in it."""

    def __init__(self, page: Page, player: Player) -> None:
        self.page = page
        self.player = player
        self.play = player.play
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.expects_failures = False
        """Set by tests that break the server on purpose: the browser reports failed requests on the console."""
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, kind: str, text: str) -> None:
        failed = text.startswith("Failed to load resource")
        # Chromium gives up its requests when a test beside this one adds a network namespace, and repeats them.
        if not (failed and (self.expects_failures or "ERR_NETWORK_CHANGED" in text)):
            self.complaints.append(f"{kind}: {text}")

    def _request(self, url: str) -> None:
        if not url.startswith(self.player.url):
            self.foreign.append(url)

    def open(self, at: str = "") -> Page:
        """Open the dashboard at a page, such as `tenants/acme?sort=used`; the overview by default."""
        self.page.goto(f"{self.player.url}#/{at}")
        return self.page


OpenState = Callable[..., Watched]


def new_context(browser: Browser) -> BrowserContext:
    context = browser.new_context(timezone_id="UTC", reduced_motion="reduce")
    context.set_default_timeout(60_000)
    return context


@pytest.fixture(scope="module")
def shared_context(browser: Browser) -> Iterator[BrowserContext]:
    """A page in a new context costs Chromium 3 s of CPU time, and half of that in one that has had pages."""
    context = new_context(browser)
    context.new_page()  # the process of the pages ends with the last of them
    yield context
    context.close()


@pytest.fixture
def open_state(browser: Browser, shared_context: BrowserContext) -> Iterator[OpenState]:
    """`open_state("busy", width=390, dark=True)`: the page showing that fixture; `opened=False` leaves it blank.

    Each page has an origin of its own. `alone=True` opens it in a context of its own, for tests that change the
    context: its clock, its permissions, its network.
    """
    require((DIST / "index.html").is_file(), "the dashboard is not built (make web)")
    watched: list[Watched] = []
    with ExitStack() as stack:

        def start(
            name: str,
            width: int = 1440,
            *,
            at: str = "",
            dark: bool = False,
            opened: bool = True,
            alone: bool = False,
        ) -> Watched:
            player = stack.enter_context(playing(name))
            context = shared_context
            if alone:
                context = new_context(browser)
                stack.callback(context.close)
            page = context.new_page()
            stack.callback(page.close)
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if dark else "light")
            one = Watched(page, player)
            watched.append(one)
            if opened:
                one.open(at).locator("main section").first.wait_for()
            return one

        yield start
    for one in watched:
        assert one.foreign == []
        assert one.complaints == []
