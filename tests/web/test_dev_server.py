"""`npm run dev` shows every page without a server: Vite answers from a fixture."""

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.require import require
from tests.web.conftest import new_context
from tests.web.pages import PAGES
from tests.web.player import WEB
from tests.web.watch import Watch

VITE = WEB / "node_modules" / "vite" / "bin" / "vite.js"
NODE = WEB.parent / ".venv" / "node"

pytestmark = [pytest.mark.browser, pytest.mark.full]


@pytest.fixture
def dev_server() -> Iterator[str]:
    require(VITE.is_file(), "the dashboard's packages are not installed (make web)")
    path = f"{NODE}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "NODE_DISABLE_COMPILE_CACHE": "1"}
    environment.pop("LARDER", None)
    command = ["node", str(VITE), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, cwd=WEB, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                    yield found[0]
                    break
            else:
                pytest.fail("the development server ended")
        finally:
            server.terminate()


def test_every_page_is_shown_without_a_server(browser: Browser, dev_server: str) -> None:
    context = new_context(browser)
    page = context.new_page()
    watch = Watch(page, "", expects_failures=True)
    for at in PAGES:
        page.goto(f"{dev_server}#/{at}")
        page.get_by_role("main").locator("section").first.wait_for()
        expect(page.get_by_role("status").first).to_have_text("Live")
        expect(page.get_by_role("alert")).to_have_count(0)
    context.close()
    assert [each for each in watch.complaints if each.startswith(("error", "uncaught"))] == []
