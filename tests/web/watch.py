"""What goes wrong in a page of a browser."""

from playwright.sync_api import Page


class Watch:
    """Hears messages on the console of a page, what it throws, and requests to other addresses than those of `url`."""

    def __init__(self, page: Page, url: str, *, expects_failures: bool = False) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.expects_failures = expects_failures
        """Whether requests may be refused: the browser reports failed ones on the console."""
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, kind: str, text: str) -> None:
        failed = text.startswith("Failed to load resource")
        # Chromium gives up its requests when a test beside this one adds a network namespace, and repeats them.
        if not (failed and (self.expects_failures or "ERR_NETWORK_CHANGED" in text)):
            self.complaints.append(f"{kind}: {text}")

    def _request(self, url: str) -> None:
        if not url.startswith(self.url):
            self.foreign.append(url)

    def check(self) -> None:
        """Fail if anything was wrong."""
        assert self.foreign == []
        assert self.complaints == [], self.complaints
