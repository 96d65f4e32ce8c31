"""Operators change records and expel engines in a real browser, on the dashboard of a real Larder."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from app.http.examples import EXAMPLES
from dataplane.ipc.queue import MessageQueue, QueueReader
from dataplane.ipc.store import ShmObjectStore
from tests.e2e.dashboard import ask, check_refused, dialog, fill, go, opened, press, save
from tests.e2e.larder import MODEL, Larder, cached, keys, running, store, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


def token_of(larder: Larder, name: str, role: str, **fields: Any) -> str:
    answer = larder.api.post("/api/v1/tokens", json={"name": name, "role": role, **fields})
    assert answer.status_code == 201, answer.text
    token: str = answer.json()["token"]
    return token


@pytest.mark.full
def test_tiers_and_policies_are_changed_in_forms(socket_dir: Path, browser: Browser) -> None:
    disk = socket_dir / "tier"
    with running(socket_dir) as larder, opened(larder, browser) as page:
        node = larder.node()["name"]
        go(page, "settings")
        form = ask(page, "New tier")
        fill(form, name="nvme", type="disk", budget_bytes="64MiB", parameters='{"directory": ["/x"]}')
        check_refused(
            form, "parameters", "directory: unknown; expected one of directories, segment_bytes, direct_io, threads"
        )
        fill(form, type="redis", parameters='{"servers": ["a:1"], "password": "hunter2"}')
        check_refused(form, "parameters", "env:NAME")
        expect(form.locator("#field-parameters-faults")).not_to_contain_text("hunter2")
        fill(form, type="disk", parameters=f'{{"directories": ["{disk}"], "segment_bytes": {16 << 20}}}')
        press(form, "Check")
        expect(form.get_by_text(f"{node} would accept it")).to_be_visible()
        assert not disk.exists(), "a dry run opened the tier"
        press(form, "Save")
        expect(form.get_by_text(f"{node} has applied it")).to_be_visible()
        press(form, "Done")
        expect(page.get_by_role("region", name="Tier records")).to_contain_text("in service")
        form = ask(page, "Edit the tier nvme", "Tier nvme")
        fill(form, selector="zone=z")
        press(form, "Check")
        expect(form.get_by_text(f"{node} is no longer selected, and would drop it")).to_be_visible()
        press(form, "Save")
        expect(form.get_by_text("No node is selected now.")).to_be_visible()
        press(form, "Done")
        press(page, "Delete the tier nvme")
        press(dialog(page, "Delete the tier nvme"), "Delete nvme")
        until(lambda: larder.get("tiers")["total"] == 0, "deleted")
        page.keyboard.press("Escape")

        go(page, "policy")
        form = ask(page, "New policy")
        expect(form.get_by_label("Name")).to_have_value("default")
        form.get_by_label("Algorithm algorithm").select_option("s3fifo")
        fill(form, low_watermark="0.95", high_watermark="0.9")
        check_refused(form, "low_watermark", "at most high_watermark, 0.9")
        fill(form, low_watermark="0.8")
        save(form, node)
        expect(page.get_by_role("region", name="Policies")).to_contain_text("s3fifo")
        until(lambda: larder.node()["stats"]["policy"]["algorithm"] == "s3fifo", "in force")


@pytest.mark.full
def test_a_pin_is_created_and_deleted_and_an_engine_expelled(socket_dir: Path, browser: Browser) -> None:
    with running(socket_dir) as larder, opened(larder, browser) as page:
        node = larder.node()["name"]
        with larder.engine(engine="vllm 0.33", group="engine-0") as engine:
            prompt = keys("prompt", 4)
            store(engine, prompt)
            go(page, "pins")
            form = ask(page, "New pin")
            form.get_by_label("Made from").select_option("keys")
            fill(form, name="system-prompt", model=MODEL, keys='["12"]')
            check_refused(form, "keys", "64")
            fill(form, keys=str([key.hex() for key in prompt]).replace("'", '"'), ttl_s="3600")
            save(form, node)
            assert larder.get("pins/system-prompt")["key_count"] == 4
            form = ask(page, "New pin")
            form.get_by_label("Made from").select_option("keys")
            fill(form, name="system-prompt", model=MODEL, keys=f'["{prompt[0].hex()}"]')
            check_refused(form, "name", "already")
            press(form, "Close")
            sure = ask(page, "Release the pin system-prompt", "Delete the pin system-prompt")
            expect(sure.get_by_text("It keeps 4 blocks of _default in memory now: 256 KiB.")).to_be_visible()
            made = larder.get("pins/system-prompt")
            press(sure, "Delete system-prompt")
            expect(sure.get_by_text(f"{node} has dropped it")).to_be_visible()
            press(sure, "Undo")
            expect(sure.get_by_text("The pin system-prompt is back.")).to_be_visible()
            assert larder.get("pins/system-prompt")["keys_digest"] == made["keys_digest"]
            press(sure, "Done")
            press(page, "Release the pin system-prompt")
            press(sure, "Delete system-prompt")
            press(sure, "Done")
            assert larder.get("pins")["total"] == 0
            go(page, "changes")
            page.get_by_role("button", name=re.compile("^Put back the pin system-prompt")).first.click()
            sure = dialog(page, "Put back the pin system-prompt")
            press(sure, "Create system-prompt again")
            expect(sure.get_by_text("The pin system-prompt is back.")).to_be_visible()
            assert larder.get("pins/system-prompt")["keys_digest"] == made["keys_digest"]
            press(sure, "Done")
            go(page, "pins")
            sure = ask(page, "Release the pin system-prompt", "Delete the pin system-prompt")
            press(sure, "Delete system-prompt")
            press(sure, "Done")
            for _ in range(5):
                cached(engine, prompt)
            page.get_by_role("button", name=re.compile("^Pin p-")).first.click()
            form = dialog(page, "New pin")
            expect(form.get_by_label("Prefix prefix")).to_have_value(re.compile("^p-"))
            fill(form, name="hot")
            save(form, node)
            hot = larder.get("pins/hot")
            assert (hot["model"], hot["ttl_s"], hot["refresh_on_hit"]) == (MODEL, 86_400, True)

            go(page, f"nodes/{node}")
            with engine.acquire(prompt):
                page.get_by_role("button", name="Expel vllm 0.33").click()
                sure = dialog(page, f"Expel vllm 0.33 on {node}")
                press(sure, "Expel vllm 0.33")
                expect(sure.get_by_role("alert")).to_contain_text("holds")
                sure.get_by_label("Expel by force").check()
                press(sure, "Expel vllm 0.33")
                expect(sure.get_by_role("status")).to_contain_text("is expelled")
                press(sure, "Done")
            [stats] = [each for each in larder.node()["stats"]["engines"] if each["engine"] == "vllm 0.33"]
            until(lambda: larder.node()["stats"]["engines"][0]["expelled"] == "barred", "expelled")
            page.get_by_role("button", name="Readmit vllm 0.33").click()
            sure = dialog(page, f"Readmit vllm 0.33 on {node}")
            press(sure, "Readmit vllm 0.33")
            expect(sure.get_by_role("status")).to_contain_text("may attach again")
            assert stats["client"]


@pytest.mark.full
def test_without_the_scope_values_and_commands_are_shown(socket_dir: Path, browser: Browser) -> None:
    with running(socket_dir) as larder:
        root = token_of(larder, "root", "admin")
        larder.api.headers["Authorization"] = f"Bearer {root}"
        viewer = token_of(larder, "night-shift", "viewer")
        own = token_of(larder, "acme-ops", "operator", tenants=["acme"])
        larder.put("quotas/acme", limit_bytes="2MiB")
        larder.put("policies/default", algorithm="lru")
        with larder.engine(engine="vllm 0.33", group="engine-0"):
            with opened(larder, browser, viewer) as page:
                go(page, "tenants")
                expect(page.get_by_role("button", name="New quota")).to_have_count(0)
                shown = ask(page, "Quota of acme")
                expect(shown).to_contain_text("2 MiB")
                expect(shown).to_contain_text("larder quotas edit acme")
                expect(shown).to_contain_text("the role viewer")
                expect(shown.get_by_role("button", name="Check")).to_have_count(0)
                press(shown, "Close")
                go(page, "policy")
                press(page, "Details of the policy default")
                expect(dialog(page, "Policy default")).to_contain_text("larder policies edit default")
                page.keyboard.press("Escape")
                go(page, f"nodes/{larder.node()['name']}")
                page.get_by_role("button", name="Details of vllm 0.33").click()
                shown = page.get_by_role("dialog")
                expect(shown).to_contain_text("larder engines expel")
            # The owner of a tenant has no ceiling yet: the server's reason is shown, and nothing is lost.
            with opened(larder, browser, own) as page:
                go(page, "tenants")
                form = ask(page, "Edit the quota of acme", "Quota of acme")
                fill(form, limit_bytes="1MiB")
                press(form, "Check")
                expect(form.get_by_role("alert").filter(has_text="ceiling").first).to_be_visible()
                expect(form.get_by_label("Limit limit_bytes")).to_have_value("1MiB")
                ceiling = larder.api.put("/api/v1/ceilings/acme", json={"max_limit_bytes": "4MiB"})
                assert ceiling.is_success, ceiling.text
                press(form, "Check")
                expect(form.get_by_text("cannot ask the nodes")).to_be_visible()
                press(form, "Save")
                expect(form.get_by_role("heading", name="Saved")).to_be_visible()
                assert larder.get("quotas/acme")["limit_bytes"] == 1 << 20


@pytest.mark.full
def test_queues_and_stores_in_shared_memory_are_seen_on_the_node(socket_dir: Path, browser: Browser) -> None:
    name = f"tokens-{os.getpid()}"
    with (
        running(socket_dir, LARDER_DATAPLANE__IPC_INTERVAL_S="0.2") as larder,
        MessageQueue(name, capacity_bytes=1 << 16, remote="tcp://127.0.0.1") as queue,
        QueueReader(queue.handle()) as reader,
        QueueReader(queue.handle(), remote=True),
        ShmObjectStore.create(1 << 20, name=f"images-{os.getpid()}", max_objects=16) as store,
        opened(larder, browser, width=400) as page,
    ):
        go(page, f"nodes/{larder.node()['name']}")
        seen = page.get_by_role("region", name="Shared memory").get_by_role("listitem")
        queue.wait_for_readers(1, 60, remote=1)
        shown = f"writer {os.getpid()}, 1 reader, 1 remote reader"
        expect(seen.filter(has_text=f"{name} queue").last).to_contain_text(shown)
        for number in range(100):
            queue.put(number)
            assert reader.get(60) == number
        store.put("picture", b"x" * 1000)
        expect(seen.filter(has_text=f"{name} queue").last).to_contain_text("100 B sent")
        expect(seen.filter(has_text=f"images-{os.getpid()}").last).to_contain_text("1 object")
        seen.filter(has_text=f"{name} queue").last.scroll_into_view_if_needed()
        page.wait_for_function("() => document.documentElement.scrollWidth <= 400")


@pytest.mark.full
def test_pins_are_edited_and_the_records_of_the_management_plane_have_forms(
    socket_dir: Path, browser: Browser, tmp_path: Path
) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps(EXAMPLES["TokenizerPut"]["tokenizer"]), encoding="utf-8")
    with running(socket_dir) as larder, opened(larder, browser, width=1280) as page:
        node = larder.node()["name"]
        with larder.engine(engine="vllm 0.33", group="engine-0") as engine:
            prompt = keys("prompt", 4)
            store(engine, prompt)
            body = {"model": MODEL, "keys": [key.hex() for key in prompt], "ttl_s": 600}
            assert larder.api.put("/api/v1/pins/system", json=body).status_code == 201
            go(page, "pins")
            form = ask(page, "Edit the pin system", "Pin system")
            expect(form.get_by_label("Keys keys")).to_have_count(0)
            form.get_by_label("Strength strength").select_option("permanent")
            check_refused(form, "strength", "a permanent pin has no end")
            form.get_by_label("Strength strength").select_option("soft")
            press(form, "1 week")
            press(form, "Check")
            expect(form.get_by_role("row", name="strength guaranteed soft")).to_be_visible()
            before = larder.get("pins/system")
            assert before["strength"] == "guaranteed", "a dry run stored something"
            press(form, "Save")
            expect(form.get_by_text(f"{node} has applied it")).to_be_visible()
            press(form, "Done")
            pin = larder.get("pins/system")
            assert pin["strength"] == "soft"
            assert pin["expires_at"] > before["expires_at"] + 500_000

        page.get_by_role("link", name="Settings").click()
        form = ask(page, "New ceiling")
        fill(form, name="acme", max_limit_bytes="4 apples")
        check_refused(form, "max_limit_bytes", "4 apples")
        fill(form, max_limit_bytes="1000GiB")
        form.get_by_role("group", name="Strengths").get_by_label("soft", exact=True).check()
        press(form, "Check")
        expect(form.get_by_role("row", name="max_limit_bytes")).to_be_visible()
        assert larder.get("ceilings")["total"] == 0, "a dry run stored something"
        press(form, "Save")
        expect(form.get_by_role("heading", name="Saved")).to_be_visible()
        press(form, "Done")
        ceiling = larder.get("ceilings/acme")
        assert (ceiling["max_limit_bytes"], ceiling["strengths"]) == (1000 << 30, ["soft"])

        form = ask(page, "New rate")
        fill(form, name="llama", model="llama", prefill_tokens_per_s="0")
        check_refused(form, "prefill_tokens_per_s", "above 0")
        fill(form, prefill_tokens_per_s="12000")
        save(form)
        form = ask(page, "Edit the rate llama", "Rate llama")
        fill(form, note="measured")
        save(form)
        rate = larder.get("rates/llama")
        assert (rate["prefill_tokens_per_s"], rate["note"]) == (12000, "measured")

        form = ask(page, "New tokenizer")
        fill(form, name="words", model="llama")
        check_refused(form, "tokenizer", "expected")
        chosen = form.get_by_label("Tokenizer tokenizer")
        chosen.set_input_files(tokenizer)
        chosen.evaluate("(input) => input.files[0].text()")  # the form has read it by then, too
        # Choosing nothing in the browser's dialog does not close the form.
        chosen.evaluate("(input) => input.dispatchEvent(new Event('cancel', { bubbles: true }))")
        expect(form.get_by_label("Name")).to_have_value("words")
        press(form, "Check")
        expect(form.get_by_role("row", name="digest")).to_be_visible()
        press(form, "Save")
        press(form, "Done")
        digest = larder.get("tokenizers/words")["digest"]
        form = ask(page, "Edit the tokenizer words", "Tokenizer words")
        fill(form, note="of June")
        save(form)
        record = larder.get("tokenizers/words")
        assert (record["digest"], record["note"]) == (digest, "of June"), "the file stays"
        press(page, "Delete the rate llama")
        press(dialog(page, "Delete the rate llama"), "Delete llama")
        until(lambda: larder.get("rates")["total"] == 0, "deleted")
