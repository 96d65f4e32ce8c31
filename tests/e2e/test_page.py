"""The dashboard of a real Larder in a real browser: numbers of a real load, live."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.dashboard import opened
from tests.e2e.larder import BLOCK_BYTES, MODEL, cached, keys, running, store


@pytest.mark.browser
def test_quota_pin_and_node_are_seen_live_without_an_external_request(socket_dir: Path, browser: Browser) -> None:
    with (
        running(socket_dir) as larder,
        larder.engine(engine="vllm 0.33", group="engine-0") as engine,
        opened(larder, browser, expects_failures=False) as page,
    ):
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
