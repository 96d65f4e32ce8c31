"""The dashboard as an operator uses it, from page to page, against one real Larder with a load."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from app.http.examples import EXAMPLES
from tests.e2e.dashboard import ask, dialog, fill, go, log_in, opened, panel, press, save
from tests.e2e.larder import BLOCK_BYTES, MODEL, Larder, keys, running, store, until

# Other tests add network namespaces, at which Chromium gives up the requests that it has open.
pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(400)]


def a_tenant_is_limited_and_its_limit_removed(larder: Larder, page: Page) -> None:
    node = larder.node()["name"]
    expect(panel(page, "Largest tenants").get_by_role("link", name="noisy")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("noisy")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Adopt", exact=True).click()
    press(dialog(page, "Adopt noisy"), "Adopt noisy")
    press(dialog(page, "Adopt noisy"), "Done")
    quota = panel(page, "Quota")
    expect(quota.get_by_role("button", name="Delete the quota of noisy")).to_be_visible()
    quota.get_by_label("Limit", exact=True).fill("4 apples")
    expect(quota).to_contain_text("4 apples")
    quota.get_by_label("Limit", exact=True).fill(f"{4 * BLOCK_BYTES // 1024}KiB")
    expect(quota).to_contain_text(f"Would evict 1 MiB of noisy from memory at once, on {node}.")
    assert larder.get("quotas/noisy")["limit_bytes"] is None, "a preview stored something"
    press(quota, "Save")
    expect(quota).to_contain_text(f"{node} has applied it")
    until(lambda: larder.get("tenants/noisy")["bytes"] == 4 * BLOCK_BYTES, "it was evicted")
    press(quota, "Undo")
    expect(quota).to_contain_text("Undone as generation")
    assert larder.get("quotas/noisy")["limit_bytes"] is None


def a_prompt_is_pinned_by_its_text(larder: Larder, page: Page) -> None:
    tokenizer = json.dumps(EXAMPLES["TokenizerPut"]["tokenizer"])
    page.keyboard.press("/")
    page.get_by_role("combobox").fill("new pin")
    page.keyboard.press("Enter")
    form = dialog(page, "New pin")
    expect(form.get_by_label("Model model")).to_have_value(MODEL)
    fill(form, name="prompt", text="a prompt")
    press(form, "Check")
    form.get_by_role("button", name="Register the tokenizer").click()
    form = dialog(page, "New tokenizer")
    expect(form.get_by_label("Model model")).to_have_value(MODEL)
    fill(form, name="words")
    form.get_by_label("Tokenizer tokenizer").set_input_files(
        {"name": "tokenizer.json", "mimeType": "application/json", "buffer": tokenizer.encode()}
    )
    save(form)
    go(page, "pins")
    form = ask(page, "New pin")
    fill(form, name="prompt", text="hello world " * 8)
    form.get_by_text("More fields").click()
    fill(form, chunk_tokens="4")
    node = larder.node()["name"]
    save(form, node)
    page.get_by_role("link", name="prompt", exact=True).click()
    expect(panel(page, "Acknowledged by")).to_contain_text(f"{node} has applied it")
    expect(panel(page, "On nodes and tiers")).to_contain_text(node)


def blocks_are_counted_before_they_are_dropped(page: Page) -> None:
    go(page, "blocks?tenant=chat")
    blocks = panel(page, "Blocks")
    expect(blocks).to_contain_text("6 blocks")
    expect(blocks.get_by_role("list", name="Prefixes, the largest first").get_by_role("listitem")).to_have_count(1)
    press(blocks, "Demote all of these")
    sure = dialog(page, "Demote chat")
    expect(sure).to_contain_text("Affected: 6 blocks, 384 KiB.")
    press(sure, "Cancel")
    press(blocks, "Invalidate all of these")
    sure = dialog(page, "Invalidate chat")
    expect(sure).to_contain_text("Lost: 6 blocks, 384 KiB.")
    press(sure, "Invalidate these blocks")
    expect(sure).to_contain_text("has begun the sweep")
    press(sure, "Done")
    expect(blocks).to_contain_text("No cached block matches")


def a_node_drains_and_serves_again(larder: Larder, page: Page) -> None:
    node = larder.node()["name"]
    go(page, "nodes")
    page.get_by_role("rowheader").get_by_role("link", name=node).click()
    sure = ask(page, "Drain", f"Drain {node}")
    press(sure, f"Drain {node}")
    expect(sure).to_contain_text("was requested to drain")
    expect(page.get_by_text("draining", exact=True)).to_be_visible()
    press(sure, "Undo")
    expect(page.get_by_text("draining", exact=True)).to_have_count(0)
    press(sure, "Done")
    expect(panel(page, "Pushed snapshots").get_by_text("applied").first).to_be_visible()


def a_policy_is_restored_from_its_history(larder: Larder, page: Page) -> None:
    larder.put("policies/default", algorithm="lru", note="first")
    etag = larder.get("policies/default")["etag"]
    changed = larder.api.put("/api/v1/policies/default", json={"algorithm": "arc"}, headers={"If-Match": etag})
    assert changed.is_success, changed.text
    go(page, "policy")
    expect(panel(page, "In force")).to_contain_text("arc")
    panel(page, "History").get_by_role("button", name=re.compile("^Put back the policy default")).first.click()
    form = dialog(page, "Policy default")
    expect(form.get_by_role("row", name="algorithm arc lru")).to_be_visible()
    press(form, "Save")
    expect(form.get_by_text("has applied it")).to_be_visible()
    press(form, "Done")
    assert larder.get("policies/default")["note"] == "first"
    go(page, "changes")
    first = panel(page, "Changes").get_by_role("listitem").first
    expect(first).to_contain_text("update policy default")
    expect(first).to_contain_text("applied by 1 node")


def a_token_is_created_and_used(larder: Larder, page: Page) -> None:
    """Afterwards, every request needs a token."""
    go(page, "settings")
    form = ask(page, "New token")
    form.get_by_label("Name").fill("root")
    form.get_by_role("radio", name="also manages tokens").check()
    press(form, "Create the token")
    token = form.locator("pre").inner_text()
    larder.api.headers["Authorization"] = f"Bearer {token}"
    page.reload()
    log_in(page, token)
    go(page, "settings")
    tokens = panel(page, "Tokens")
    expect(tokens.get_by_role("row", name=re.compile("^root"))).to_contain_text("yours")
    press(tokens, "Revoke the token root")
    sure = dialog(page, "Revoke root")
    expect(sure).to_contain_text("you will be logged out")
    press(sure, "Cancel")
    assert larder.get("tokens")["total"] == 1


def test_an_operator_works_in_the_dashboard_alone(socket_dir: Path, browser: Browser) -> None:
    with (
        running(socket_dir) as larder,
        larder.engine(engine="vllm 0.33", group="engine-0") as engine,
        opened(larder, browser) as page,
    ):
        prompt = keys("prompt", 6)
        store(engine, prompt, "chat")
        store(engine, keys("noise", 20), "noisy")
        until(lambda: larder.get("tenants")["total"] == 2, "both tenants are seen")
        a_tenant_is_limited_and_its_limit_removed(larder, page)
        a_prompt_is_pinned_by_its_text(larder, page)
        blocks_are_counted_before_they_are_dropped(page)
        a_node_drains_and_serves_again(larder, page)
        a_policy_is_restored_from_its_history(larder, page)
        a_token_is_created_and_used(larder, page)
