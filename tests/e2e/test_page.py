"""The dashboard of a real Larder in a real browser: numbers of a real load, live."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.larder import BLOCK_BYTES, MODEL, cached, keys, running, store


@pytest.mark.browser
def test_quota_pin_and_node_are_seen_live_without_an_external_request(socket_dir: Path, browser: Browser) -> None:
    foreign: list[str] = []
    complaints: list[str] = []
    with running(socket_dir) as larder, larder.engine(engine="vllm 0.33", group="engine-0") as engine:
        page = browser.new_page(viewport={"width": 1440, "height": 1100})
        page.on("request", lambda request: foreign.append(request.url) if larder.url not in request.url else None)
        # Chromium gives up its requests when a test beside this one adds a network namespace, and repeats them.
        page.on(
            "console",
            lambda message: None if "ERR_NETWORK_CHANGED" in message.text else complaints.append(message.text),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(larder.url)
        expect(page.get_by_text(larder.node()["name"]).first).to_be_visible()
        # Everything below happens after the page was opened: it must arrive by itself.
        prompt = keys("prompt", 6)
        larder.put("pins/system-prompt", model=MODEL, tenant="chat", keys=[key.hex() for key in prompt])
        store(engine, prompt, "chat")
        larder.put("quotas/acme", limit_bytes=12 * BLOCK_BYTES)
        assert store(engine, keys("acme", 20), "acme") == 12
        store(engine, keys("scan", 10), "scanner")
        for _ in range(5):
            cached(engine, prompt)
            engine.lookup(prompt, tenant="chat")
        for text in ("acme", "chat", "scanner", "768 KiB", "over limit", "1 engine", "pin.created"):
            expect(page.get_by_role("main").get_by_text(text).first).to_be_visible()
        expect(page.get_by_text("in sync", exact=True).first).to_be_visible()
        page.get_by_role("link", name="Pins").click()
        expect(page.get_by_role("link", name="system-prompt")).to_be_visible()
        folder = os.environ.get("LARDER_TEST_SCREENSHOTS")
        if folder:
            page.wait_for_timeout(2500)
            page.screenshot(path=str(Path(folder) / "dashboard.png"), full_page=True)
        page.close()
    assert foreign == []
    assert complaints == []
