"""The dashboard of a real Larder in a real browser: numbers of a real load, a quota, and a login."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.dashboard import ask, fill, go, log_in, opened, press, visited
from tests.e2e.larder import BLOCK_BYTES, MODEL, Larder, cached, keys, running, store

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


def test_an_operator_sees_a_load_live_changes_a_quota_and_logs_in(socket_dir: Path, browser: Browser) -> None:
    with running(socket_dir) as larder:
        with opened(larder, browser, expects_failures=False) as page:
            a_load_is_seen_live_without_an_external_request(larder, page)
        larder.delete("quotas/acme")
        with opened(larder, browser) as page:
            a_quota_is_tried_saved_and_acknowledged_and_conflicts_are_refused(larder, page)
        the_dashboard_requires_a_token_and_shows_what_it_permits(larder, browser)


def a_load_is_seen_live_without_an_external_request(larder: Larder, page: Page) -> None:
    with larder.engine(engine="vllm 0.33", group="engine-0") as engine:
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


def a_quota_is_tried_saved_and_acknowledged_and_conflicts_are_refused(larder: Larder, page: Page) -> None:
    node = larder.node()["name"]
    go(page, "tenants")
    form = ask(page, "New quota")
    expect(form.get_by_label("Name")).to_be_focused()
    fill(form, name="acme", limit_bytes="4 apples", floor_bytes="1MiB")
    press(form, "Check")
    limit = form.get_by_label("Limit limit_bytes")
    expect(limit).to_have_attribute("aria-invalid", "true")
    expect(limit).to_be_focused()
    expect(form.locator("#field-limit_bytes-faults")).to_contain_text("4 apples")
    expect(form.locator("#field-floor_bytes-faults")).to_have_text("")
    limit.fill("2MiB")
    press(form, "Add a tier")
    form.get_by_label("Tier", exact=True).fill("disk")
    form.locator("fieldset").get_by_label("Limit").fill("1GiB")
    press(form, "Check")
    expect(form.get_by_role("heading", name="What would be created")).to_be_focused()
    expect(form.get_by_role("row", name="limit_bytes 2 MiB")).to_be_visible()
    expect(form.get_by_text(f"{node} would accept it")).to_be_visible()
    assert larder.get("quotas")["total"] == 0, "a dry run stored something"
    press(form, "Save")
    expect(form.get_by_text(f"{node} has applied it")).to_be_visible()
    press(form, "Done")
    quota = larder.get("quotas/acme")
    assert (quota["limit_bytes"], quota["floor_bytes"]) == (2 << 20, 1 << 20)
    assert quota["tiers"] == {"disk": {"limit_bytes": 1 << 30}}

    # Somebody else changes the weight while the limit is being changed here.
    form = ask(page, "Edit the quota of acme", "Quota of acme")
    expect(form.get_by_label("Limit limit_bytes")).to_have_value("2MiB")
    fill(form, limit_bytes="3MiB")
    press(form, "Check")
    expect(form.get_by_role("row", name="limit_bytes 2 MiB 3 MiB")).to_be_visible()
    expect(form.get_by_role("row")).to_have_count(2)
    changed = larder.api.patch(
        "/api/v1/quotas/acme",
        json={"weight": 7},
        headers={"If-Match": quota["etag"], "Content-Type": "application/merge-patch+json"},
    )
    assert changed.status_code == 200, changed.text
    press(form, "Save")
    expect(form.get_by_text("This quota was changed in the meantime.")).to_be_visible()
    assert larder.get("quotas/acme")["limit_bytes"] == 2 << 20
    press(form, "Load the new state, keep my changes")
    expect(form.get_by_role("row", name="weight 1 7")).to_be_visible()
    expect(form.get_by_label("Limit limit_bytes")).to_have_value("3MiB")
    press(form, "Check")
    press(form, "Save")
    expect(form.get_by_text(f"{node} has applied it")).to_be_visible()
    page.keyboard.press("Escape")
    expect(form).to_have_count(0)
    expect(page.get_by_role("button", name="Edit the quota of acme")).to_be_focused()
    quota = larder.get("quotas/acme")
    assert (quota["limit_bytes"], quota["weight"]) == (3 << 20, 7)

    page.get_by_role("link", name="acme", exact=True).click()
    sure = ask(page, "Delete the quota of acme", "Delete the quota acme")
    press(sure, "Delete acme")
    expect(sure.get_by_text(f"{node} has dropped it")).to_be_visible()
    assert larder.get("quotas")["total"] == 0


def the_dashboard_requires_a_token_and_shows_what_it_permits(larder: Larder, browser: Browser) -> None:
    made = larder.api.post("/api/v1/tokens", json={"name": "root", "role": "admin"}).json()
    larder.api.headers["Authorization"] = f"Bearer {made['token']}"
    answer = larder.api.post("/api/v1/tokens", json={"name": "night-shift", "role": "viewer"})
    token = answer.json()["token"]
    larder.put("quotas/acme", limit_bytes=5)
    with visited(larder, browser) as page:
        field = page.get_by_label("Token")
        expect(field).to_be_visible()
        expect(page.get_by_text("acme")).to_have_count(0)
        press(page, "Log in")
        expect(page.get_by_role("alert")).to_have_text("Paste a token first.")
        field.fill("larder_wrong")
        press(page, "Log in")
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
        press(page, "Log out")
        expect(field).to_be_visible()
        expect(page.get_by_text("acme")).to_have_count(0)
        # A revoked token ends what is open with it.
        log_in(page, token)
        expect(page.get_by_text("acme").first).to_be_visible()
        assert larder.api.delete("/api/v1/tokens/night-shift").status_code == 204
        expect(field).to_be_visible()
        assert token not in (larder.folder / "log").read_text()
