"""The API's documentation page works offline, under the content security policy of the real server."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.app.apart import serving_apart
from tests.app.callers import ADMIN, bearer
from tests.require import require
from tests.web.player import DIST
from tests.web.watch import Watch

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(400)]


class Docs(Watch):
    """The page; requests that are refused are expected."""

    def route(self, tag: str, name: str) -> Locator:
        """Opened and ready to be tried."""
        found = self.page.locator(f"#operations-{tag}-{name}")
        if "is-open" not in (found.get_attribute("class") or ""):
            found.locator(".opblock-summary-control").click()
        return found

    def execute(self, route: Locator, status: int, **fields: str) -> Locator:
        """The answer to a request with these parameters (`If_Match` for If-Match), which must be of this status."""
        for name, value in fields.items():
            route.locator(f"tr[data-param-name={name.replace('_', '-')}] input").fill(value)
        with self.page.expect_response(lambda answer: "/api/v1/" in answer.url and "session" not in answer.url) as got:
            route.get_by_role("button", name="Execute").click()
        assert got.value.status == status, got.value.text()
        answer = route.locator(".live-responses-table .response").first
        expect(answer.locator(".response-col_status")).to_contain_text(str(status), timeout=60_000)
        return answer

    def authorize(self, token: str) -> None:
        self.page.get_by_role("button", name="Authorize").first.click()
        dialog = self.page.locator(".modal-ux")
        expect(dialog.locator("input")).to_have_count(1)  # what the browser sends by itself is not asked for
        dialog.locator("input").fill(token)
        dialog.get_by_role("button", name="Apply credentials").click()
        dialog.get_by_role("button", name="Close").last.click()


@contextmanager
def opened(browser: Browser, folder: Path, **settings: str) -> Iterator[Docs]:
    require((DIST / "swagger" / "index.html").is_file(), "the documentation page is not built (make web)")
    with ExitStack() as stack:
        url = stack.enter_context(serving_apart(folder, **settings))
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        stack.callback(context.close)
        context.set_default_timeout(60_000)
        docs = Docs(context.new_page(), url, expects_failures=True)
        docs.page.goto(f"{url}/api/docs")
        yield docs
        docs.check()


def everything_can_be_tried(docs: Docs) -> None:
    """Read, create, change with the right state, with a wrong one and with none, patch, delete."""
    listed = docs.execute(docs.route("quotas", "listQuotas"), 200, limit="10")
    expect(listed).to_contain_text('"total": 0')
    put = docs.route("quotas", "putQuota")
    expect(docs.execute(put, 201, tenant="acme")).to_contain_text('"floor_bytes": 268435456')
    expect(docs.execute(put, 428)).to_contain_text("precondition-required")
    expect(docs.execute(put, 412, If_Match='"7"')).to_contain_text("precondition-failed")
    put.locator("textarea").fill('{"limit_bytes": "5GiB"}')
    expect(docs.execute(put, 200, If_Match='"1"')).to_contain_text('"limit_bytes": 5368709120')
    patch = docs.route("quotas", "patchQuota")
    expect(patch.locator(".body-param-content-type")).to_contain_text("application/merge-patch+json")
    expect(docs.execute(patch, 200, tenant="acme", If_Match='"2"')).to_contain_text('"limit_bytes": 8589934592')
    docs.execute(docs.route("quotas", "deleteQuota"), 204, tenant="acme", If_Match="*")


def a_record_can_be_put(docs: Docs) -> None:
    """Read and change: both are sent with the identity that the page has."""
    expect(docs.execute(docs.route("quotas", "listQuotas"), 200, limit="10")).to_contain_text('"total": 0')
    docs.execute(docs.route("quotas", "putQuota"), 201, tenant="acme")


def test_without_tokens_everything_can_be_tried(browser: Browser, socket_dir: Path) -> None:
    with opened(browser, socket_dir) as docs:
        everything_can_be_tried(docs)


def test_who_gives_a_token_can_try_requests(browser: Browser, socket_dir: Path) -> None:
    with opened(browser, socket_dir, auth="required", admin_token=ADMIN) as docs:
        refused = docs.execute(docs.route("quotas", "listQuotas"), 401)
        expect(refused).to_contain_text("urn:larder:problem:unauthorized")
        docs.authorize(ADMIN)
        a_record_can_be_put(docs)


def test_who_is_logged_in_to_the_dashboard_can_try_requests(browser: Browser, socket_dir: Path) -> None:
    with opened(browser, socket_dir, auth="required", admin_token=ADMIN) as docs:
        made = httpx.post(f"{docs.url}/api/v1/tokens", json={"name": "ops", "role": "operator"},
                          headers=bearer(ADMIN), trust_env=False, timeout=60).json()  # fmt: skip
        docs.page.context.request.post(f"{docs.url}/api/v1/session", data={"token": made["token"]})
        a_record_can_be_put(docs)
        refused = docs.execute(docs.route("tokens", "listTokens"), 403)
        expect(refused).to_contain_text("this needs the role 'admin'")
