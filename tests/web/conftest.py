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


class Kept:
    """A page that stays open from one test to the next."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context
        self._stack = ExitStack()
        self._of: tuple[str, str] | None = None
        self._watched: Watched

    def of(self, name: str, role: str) -> Watched:
        """The page of this fixture and this role, as it was left if that was the last one."""
        if self._of != (name, role):
            self.close()
            self._watched = opened(self._stack, self._context, name, role)
            self._of = name, role
        return self._watched

    def close(self) -> None:
        self._of = None
        self._stack.close()


def opened(stack: ExitStack, context: BrowserContext, name: str, role: str) -> Watched:
    """A blank page whose server plays that fixture, until the stack is closed."""
    require((DIST / "index.html").is_file(), "the dashboard is not built (make web)")
    player = stack.enter_context(playing(name))
    if role:
        player.play.session = {**player.play.session, "role": role}
    page = context.new_page()
    stack.callback(page.close)
    return Watched(page, player)


def show(one: Watched, at: str | None, width: int, *, dark: bool) -> Watched:
    """Give the page its look, and open the dashboard in it, unless it is to stay blank."""
    one.page.set_viewport_size({"width": width, "height": 900})
    one.page.emulate_media(color_scheme="dark" if dark else "light")
    if at is not None:
        one.open(at).locator("main section").first.wait_for()
    return one


@pytest.fixture(scope="module")
def kept(shared_context: BrowserContext) -> Iterator[Kept]:
    one = Kept(shared_context)
    yield one
    one.close()


@pytest.fixture
def look_at(kept: Kept) -> Iterator[OpenState]:
    """`look_at("busy", at="pins", width=390, dark=True, role="admin")`: the page showing that fixture, for tests that
    change neither the fixture nor the page: it stays open for the next test, which costs a fifth of a new one."""
    seen: list[Watched] = []

    def start(name: str, width: int = 1440, *, at: str = "", dark: bool = False, role: str = "") -> Watched:
        seen.append(show(kept.of(name, role), at, width, dark=dark))
        return seen[-1]

    try:
        yield start
        for one in seen:
            one.check()
    except AssertionError:
        kept.close()
        raise


@pytest.fixture
def open_state(browser: Browser, shared_context: BrowserContext) -> Iterator[OpenState]:
    """`open_state("busy", width=390, dark=True)`: a new page showing that fixture; `opened=False` leaves it blank.

    Each page has an origin of its own. `alone=True` opens it in a context of its own, for tests that change the
    context: its clock, its permissions, its network. `role="admin"` is the role of whoever looks at it.
    """
    watched: list[Watched] = []
    with ExitStack() as stack:

        def start(
            name: str,
            width: int = 1440,
            *,
            at: str = "",
            dark: bool = False,
            shown: bool = True,
            alone: bool = False,
            role: str = "",
        ) -> Watched:
            context = shared_context
            if alone:
                context = new_context(browser)
                stack.callback(context.close)
            watched.append(opened(stack, context, name, role))
            return show(watched[-1], at if shown else None, width, dark=dark)

        yield start
    for one in watched:
        one.check()
