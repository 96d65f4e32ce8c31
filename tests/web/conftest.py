"""A browser, and pages that watch themselves: any message on the console, failed request or foreign address fails."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.require import require
from tests.web.player import DIST, Player, playing
from tests.web.watch import Watch


class Watched(Watch):
    """A page, and the server that it talks to."""

    def __init__(self, page: Page, player: Player) -> None:
        super().__init__(page, player.url)
        self.play = player.play

    def hear(self, name: str, node: str = "", **fields: Any) -> None:
        """Send an event to the page."""
        play = self.play
        event = {"name": name, "at": play.now()["at"], "seq": 900 + len(play.events), "node": node, "actor": ""}
        play.events.append({**event, "fields": fields})

    def open(self, at: str = "") -> Page:
        """Open the dashboard at a page, such as `tenants/acme?sort=used`; the overview by default."""
        self.page.goto(f"{self.url}#/{at}")
        return self.page


OpenState = Callable[..., Watched]


def look(page: Page, width: int, scheme: Any) -> None:
    """Show the page at this width, in the scheme `light` or `dark`."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function("width => innerWidth === width", arg=width)


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
    context: its clock, its permissions, its network. `role="admin"` is the role of whoever looks at it.
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
            role: str = "",
        ) -> Watched:
            player = stack.enter_context(playing(name))
            if role:
                player.play.session = {**player.play.session, "role": role}
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
        one.check()
