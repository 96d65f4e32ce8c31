"""Somebody logs in to the dashboard of a real Larder with a token, sees live numbers, and logs out."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.dashboard import log_in, visited
from tests.e2e.larder import running


@pytest.mark.browser
def test_the_dashboard_requires_a_token_and_shows_what_it_permits(socket_dir: Path, browser: Browser) -> None:
    with running(socket_dir) as larder:
        made = larder.api.post("/api/v1/tokens", json={"name": "root", "role": "admin"}).json()
        larder.api.headers["Authorization"] = f"Bearer {made['token']}"
        answer = larder.api.post("/api/v1/tokens", json={"name": "night-shift", "role": "viewer"})
        token = answer.json()["token"]
        larder.put("quotas/acme", limit_bytes=5)
        with visited(larder, browser) as page:
            field = page.get_by_label("Token")
            expect(field).to_be_visible()
            expect(page.get_by_text("acme")).to_have_count(0)
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_have_text("Paste a token first.")
            field.fill("larder_wrong")
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_contain_text("expected")
            log_in(page, token)
            expect(page.get_by_text("acme").first).to_be_visible()
            expect(page.get_by_text("night-shift", exact=True)).to_be_visible()
            expect(page.get_by_role("status")).to_have_text("Live")
            # By the stream, which has the cookie alone.
            larder.put("quotas/umbrella", limit_bytes=5)
            expect(page.get_by_text("umbrella").first).to_be_visible()
            page.reload()
            expect(page.get_by_text("night-shift", exact=True)).to_be_visible()
            cookies = page.context.cookies()
            assert [(c["name"], c["httpOnly"], c["sameSite"]) for c in cookies] == [("larder_session", True, "Strict")]
            page.get_by_role("button", name="Log out").click()
            expect(field).to_be_visible()
            expect(page.get_by_text("acme")).to_have_count(0)
            # A revoked token ends what is open with it.
            log_in(page, token)
            expect(page.get_by_text("acme").first).to_be_visible()
            assert larder.api.delete("/api/v1/tokens/night-shift").status_code == 204
            expect(field).to_be_visible()
            assert token not in (socket_dir / "log").read_text()
