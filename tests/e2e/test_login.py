"""Somebody logs in to the dashboard of a real Larder with a token, sees live numbers, and logs out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.larder import running


@pytest.mark.browser
def test_the_dashboard_requires_a_token_and_shows_what_it_permits(socket_dir: Path, browser: Browser) -> None:
    with running(socket_dir) as larder:
        made = larder.api.post("/api/v1/tokens", json={"name": "root", "role": "admin"}).json()
        larder.api.headers["Authorization"] = f"Bearer {made['token']}"
        answer = larder.api.post("/api/v1/tokens", json={"name": "night-shift", "role": "viewer"})
        token = answer.json()["token"]
        larder.put("quotas/acme", limit_bytes=5)
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        thrown: list[str] = []
        page.on("pageerror", lambda error: thrown.append(str(error)))
        page.goto(larder.url)
        field = page.get_by_label("Token")
        expect(field).to_be_visible()
        expect(page.get_by_text("acme")).to_have_count(0)
        folder = os.environ.get("LARDER_TEST_SCREENSHOTS")
        if folder:
            page.screenshot(path=str(Path(folder) / "login.png"))
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("Paste a token first.")
        field.fill("larder_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("expected")
        if folder:
            page.screenshot(path=str(Path(folder) / "refused.png"))
        field.fill(token)
        field.press("Enter")
        expect(page.get_by_text("acme").first).to_be_visible()
        expect(page.get_by_text("night-shift", exact=True)).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("Live")
        # By the stream, which has the cookie alone.
        larder.put("quotas/umbrella", limit_bytes=5)
        expect(page.get_by_text("umbrella").first).to_be_visible()
        if folder:
            page.screenshot(path=str(Path(folder) / "logged-in.png"))
        page.reload()
        expect(page.get_by_text("night-shift", exact=True)).to_be_visible()
        cookies = context.cookies()
        assert [(c["name"], c["httpOnly"], c["sameSite"]) for c in cookies] == [("larder_session", True, "Strict")]
        page.get_by_role("button", name="Log out").click()
        expect(field).to_be_visible()
        expect(page.get_by_text("acme")).to_have_count(0)
        # A revoked token ends what is open with it.
        field.fill(token)
        field.press("Enter")
        expect(page.get_by_text("acme").first).to_be_visible()
        assert larder.api.delete("/api/v1/tokens/night-shift").status_code == 204
        expect(field).to_be_visible()
        assert token not in (socket_dir / "log").read_text()
        assert thrown == []
        context.close()
