"""Moving from LMCache to Larder: the same vLLM with another port, and what people see of it then."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.peers import servers
from benchmarks.peers.environment import QUIET
from benchmarks.peers.servers import Server
from benchmarks.peers.vllm_model import FULL_CHUNKS, write_model
from tests.e2e.dashboard import go
from tests.peers.conftest import MiB
from tests.peers.scripting import SCRIPTS, ran
from tests.require import require
from tests.web.player import DIST

pytestmark = [pytest.mark.full, pytest.mark.browser, pytest.mark.timeout(900)]
TENANT = "acme"
SCREENSHOT = os.environ.get("LARDER_TEST_SCREENSHOT")
"""A file that the page is drawn into, for people."""


@contextmanager
def _staying(python: Path, server: Server, model: Path) -> Iterator[Any]:
    """A vLLM that lives on after its prompt; what it says of that."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "PYTEST_"))}
    command = [str(python), str(SCRIPTS / "generate.py"), str(server.rpc_port), str(model), "stay"]
    with subprocess.Popen(
        command, env=environ | QUIET, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            output = next((line for line in process.stdout if line.startswith('{"cached"')), None)
            assert output is not None, f"vLLM ended with {process.wait(60)}"
            yield json.loads(output)
            process.stdin.close()
            process.stdout.read()
            assert process.wait(120) == 0
        finally:
            process.kill()


def _opened(browser: Browser, server: Server) -> Page:
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
    page.set_default_timeout(30_000)
    page.goto(server.http_url)
    page.locator("#verdict-title").wait_for()
    return page


def test_the_same_vllm_continues_with_larder_and_is_seen(vllm_python: Path, browser: Browser, tmp_path: Path) -> None:
    require((DIST / "index.html").is_file(), "the dashboard is not built (make web)")
    model = write_model(tmp_path)
    with servers.lmcache(512 * MiB, "engine_driven") as before:
        theirs = ran(vllm_python, "generate", before.rpc_port, model, timeout_s=420)
    with servers.larder(512 * MiB) as after:
        first = ran(vllm_python, "generate", after.rpc_port, model, timeout_s=420)
        assert first == theirs  # also that nothing was cached yet
        with _staying(vllm_python, after, model) as second:
            assert second == {"cached": FULL_CHUNKS, "tokens": theirs["tokens"]}
            with httpx.Client(base_url=after.http_url, trust_env=False, timeout=60) as api:
                (node,) = api.get("/api/v1/nodes").json()["items"]
                assert {space["gateway"] for space in node["stats"]["spaces"]} == {"lmcache"}
            page = _opened(browser, after)
            expect(page.get_by_role("region", name="Largest tenants", exact=True)).to_contain_text(TENANT)
            go(page, f"nodes/{node['name']}")
            expect(page.get_by_role("main")).to_contain_text("1 space cached")
            expect(page.get_by_role("region", name="Engines", exact=True)).to_contain_text("LMCache worker")
            if SCREENSHOT:
                page.screenshot(path=SCREENSHOT, full_page=True)
            page.close()
