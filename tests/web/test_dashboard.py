"""The built dashboard in a browser, under the strict content security policy, in each state that it must show.

`open_state` fails a test whose page wrote to the console, threw, or asked another address than its own for anything.
"""

import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest
from playwright.sync_api import Locator, Page, Route, expect
from playwright.sync_api import TimeoutError as TimedOut

from app.schemas.base.status import NodeProgress, RecordStatus
from app.schemas.records.tiers import TierAnswer, TierRefusal
from dataplane.protocol.stats.tiers import TierStats
from tests.e2e.larder import until
from tests.web.conftest import OpenState, Watched, look
from tests.web.pages import PAGES

pytestmark = pytest.mark.browser

PROBLEM = {
    "type": "urn:larder:problem:store-unavailable",
    "title": "The database does not answer",
    "status": 503,
    "detail": "no connection to the database within 5 s",
    "instance": "/api/v1/overview",
    "request_id": "req-1182",
}


def panel(page: Page, name: str):
    return page.get_by_role("region", name=name, exact=True)


def verdict(page: Page):
    return page.locator("#verdict-title")


def says(place: Locator, *texts: str | re.Pattern[str]) -> None:
    """Check that a place contains each of these texts."""
    for text in texts:
        expect(place).to_contain_text(text)


def row_of(place: Locator, text: str) -> Locator:
    return place.get_by_role("row").filter(has_text=text)


COLUMN = """c => {
          const copy = document.createElement('canvas');  // Chromium warns about repeated reads of the canvas itself
          [copy.width, copy.height] = [c.width, c.height];
          const context = copy.getContext('2d', { willReadFrequently: true });
          context.drawImage(c, 0, 0);
          const data = context.getImageData(c.width / 2, 0, 1, c.height).data;
          return data.some((v) => v > 0) ? [...new Set(data)].join() : '';
        }"""
"""Colours in the middle of a chart; nothing before it is drawn, which is after its canvas is there."""


def painted(canvas: Locator) -> str:
    """The colours of a chart, when it is drawn."""
    return until(lambda: canvas.evaluate(COLUMN), "the chart is drawn")


# ---- what each state says; tests of one state are together, since they share its page


def check_look(page: Page, at: str = "") -> None:
    """Check that what is shown fits a phone and a screen, and can be read there."""
    for width, scheme in ((360, "dark"), (1440, "light")):
        look(page, width, scheme)
        with suppress(TimedOut):  # charts take the new width a moment later
            page.wait_for_function(f"() => ({SPILLED})().length === 0", timeout=10_000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (at, width)
        assert page.evaluate(SPILLED) == [], (at, width)
        assert page.evaluate(POOR) == [], (at, width)


def check_state(one: Watched) -> Page:
    """Check that a state fits and can be read, and return its page."""
    expect(one.page.get_by_role("status")).to_have_text("Live")
    check_look(one.page)
    return one.page


SPILLED = """() => [...document.querySelectorAll('section')].flatMap((section) => {
                 const right = section.getBoundingClientRect().right;
                 return [...section.querySelectorAll('*')]
                   .filter((e) => e.getBoundingClientRect().right > right + 0.5 && !e.closest('.cut, .unseen'))
                   .map((e) => section.id + ' ' + e.tagName + ' ' + e.className);
               })"""
"""Elements that reach over the right edge of their panel."""

POOR = """() => {
          const parse = (c) => (c.match(/[\\d.]+/g) ?? []).map(Number);
          const light = (c) => c.slice(0, 3).map((v) => v / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const behind = (e) => {
            for (; e; e = e.parentElement) {
              const c = parse(getComputedStyle(e).backgroundColor);
              if (c.length === 3 || c[3] > 0) return c;
            }
            return [255, 255, 255];
          };
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          const poor = new Set();
          while (walker.nextNode()) {
            const e = walker.currentNode.parentElement;
            if (!walker.currentNode.data.trim() || e.closest('noscript, .unseen')) continue;
            const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
            const ratio = (a + 0.05) / (b + 0.05);
            if (ratio < 4.5) poor.add(`${walker.currentNode.data.trim()} ${ratio.toFixed(2)}`);
          }
          return [...poor];
        }"""
"""Texts whose contrast to what is painted behind them is below 4.5 (WCAG AA)."""


def test_a_busy_cache_is_well(look_at: OpenState):
    page = check_state(look_at("busy"))
    expect(verdict(page)).to_have_text("All is well")
    expect(page.get_by_text("2 nodes in sync")).to_be_visible()
    expect(page.get_by_text("Quotas enforced")).to_be_visible()
    pool = panel(page, "Pool")
    says(pool, "47.7 GiB used of 64 GiB, 74.5 %", "Ready", "46.4 GiB", "6.1 GiB", "Reserved", "1.25 GiB", "Quarantined",
         "Free", "16.3 GiB")  # fmt: skip
    expect(pool.get_by_role("img", name=re.compile("^Pool of 64 GiB: ready 46.4 GiB"))).to_be_visible()
    shares = pool.get_by_role("list", name="Pool by tenant").get_by_role("listitem")
    expect(shares).to_contain_text(
        ["chat 17.8 GiB", "code-search 11.2 GiB", "batch-eval", "rag-support", "_default", "other tenants 717 MiB",
         "reserved, quarantined 1.25 GiB", "fragmentation"]
    )  # fmt: skip
    expect(shares.first.get_by_role("link", name="chat")).to_have_attribute("href", "#/tenants/chat")
    expect(panel(page, "Hit ratio")).to_contain_text("81.2 % in the last minute")
    expect(panel(page, "Traffic")).to_contain_text("2.31 GiB/s")
    expect(panel(page, "Refused blocks")).to_contain_text("over limit")
    expect(panel(page, "Recent events")).to_contain_text("engine.attached")


def test_bars_and_charts_are_drawn_under_the_policy(look_at: OpenState):
    page = look_at("busy").page
    parts = panel(page, "Pool").locator(".bar").first.locator("span")
    expect(parts).to_have_count(3)
    widths = parts.evaluate_all("all => all.map((e) => e.offsetWidth)")
    bar = panel(page, "Pool").locator(".bar").first.evaluate("e => e.offsetWidth")
    assert sum(widths) / bar == pytest.approx(47.65 / 64, abs=0.01)
    charts = panel(page, "History").locator("canvas")
    expect(charts).to_have_count(6)
    painted(charts.first)
    expect(page.get_by_role("img", name=re.compile("^Hit ratio over the last 1 h. Hit ratio: now "))).to_be_visible()


def test_charts_follow_the_colour_scheme(look_at: OpenState):
    page = look_at("busy").page
    # A scheme is drawn on a canvas of its own.
    canvas = panel(page, "History").locator("canvas").first
    light = painted(canvas)
    canvas.evaluate("c => { c.dataset.scheme = 'light' }")
    page.emulate_media(color_scheme="dark")
    dark = panel(page, "History").locator("canvas:not([data-scheme])").first
    expect(dark).to_be_visible()
    assert painted(dark) != light


def test_models_are_shown_whole(look_at: OpenState):
    one = look_at("busy", at="nodes/gpu-a1")
    expect(panel(one.page, "Spaces")).to_contain_text("meta-llama/Llama-3.3-70B-Instruct")
    one.open("pins")
    expect(panel(one.page, "Pins")).to_contain_text("Qwen/Qwen3-235B-A22B")
    expect(panel(one.page, "Hot prefixes")).to_contain_text("meta-llama/Llama-3.3-70B-Instruct")


def test_the_palette_finds_tenants_pages_and_actions(look_at: OpenState):
    page = look_at("busy").page
    page.keyboard.press("/")
    field = page.get_by_role("combobox")
    expect(field).to_be_focused()
    field.fill("rag")
    expect(page.get_by_role("option").first).to_contain_text("rag-support")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/tenants/rag-support")
    page.keyboard.press("Control+k")
    field.fill("new quota")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="New quota")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    field.fill("zzz")
    expect(page.get_by_role("dialog")).to_contain_text("Nothing matches “zzz”")
    page.keyboard.press("Escape")


def test_usage_is_shown_as_sums_and_by_step(look_at: OpenState):
    one = look_at("busy")
    page = one.page
    page.get_by_role("link", name="Usage").click()
    table = panel(page, "Usage").get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(1 + 6)
    expect(table.get_by_role("row").nth(1)).to_contain_text("chat")
    expect(table.get_by_role("row", name=re.compile("^notebooks"))).to_contain_text("no rate")
    table.get_by_role("button", name="Evicted").click()
    expect(table.get_by_role("columnheader", name="Evicted")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="Step by step").click()
    expect(table.get_by_role("row").nth(50)).to_be_attached()
    table.get_by_role("row").last.scroll_into_view_if_needed()
    expect(table.get_by_role("row")).to_have_count(1 + 144)
    panel(page, "Usage").get_by_label("of each").select_option("model")
    with page.expect_request(re.compile(r"/usage\?.*&tenant=chat$")):
        page.get_by_label("Only this tenant").fill("chat")
    expect(page.get_by_role("link", name="CSV")).to_have_attribute(
        "href", re.compile(r"^api/v1/usage\?group_by=model&step=1h&from=\d+&tenant=chat&format=csv$")
    )
    page.get_by_role("link", name="Overview").click()
    expect(verdict(page)).to_be_visible()


def test_a_hot_prefix_can_be_pinned_and_leads_to_its_blocks(look_at: OpenState):
    page = look_at("busy", at="pins").page
    prefixes = panel(page, "Hot prefixes")
    expect(prefixes.get_by_role("listitem").first).to_contain_text("812 GiB served")
    expect(prefixes.get_by_role("link", name="p-64f76ee4acd181ce")).to_have_attribute(
        "href", re.compile(r"^#/blocks\?tenant=.+&prefix=p-64f76ee4acd181ce$")
    )
    prefixes.get_by_role("button", name="Pin p-64f76ee4acd181ce").click()
    expect(page.get_by_role("dialog").get_by_label("Prefix")).to_have_value("p-64f76ee4acd181ce")
    page.keyboard.press("Escape")
    expect(panel(look_at("lost", at="pins").page, "Hot prefixes")).to_contain_text(
        "Some prefixes are missing: gpu-a2: "
    )
    expect(panel(look_at("fresh", at="pins").page, "Hot prefixes")).to_contain_text("Nothing was served")


@pytest.mark.parametrize("name", ["busy", pytest.param("over-limit", marks=pytest.mark.full)])
def test_every_page_fits_the_screen_and_can_be_read(look_at: OpenState, name: str):
    one = look_at(name, role="admin")
    for at in PAGES:
        one.open(at).get_by_role("main").locator("section").first.wait_for()
        check_look(one.page, at)


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("at", "button"),
    [
        ("tenants", "New quota"),
        ("pins", "New pin"),
        ("policy", "New policy"),
        ("settings", "New tier"),
        ("settings", "New token"),
        ("nodes/gpu-a1", re.compile("^Expel .*")),
        ("nodes/gpu-a1", "Drain"),
    ],
)
def test_dialogs_can_be_read_and_used_by_keyboard(look_at: OpenState, at: str, button: str, dark: bool):
    page = look_at("busy", 390, at=at, dark=dark, role="admin").page
    opener = page.get_by_role("button", name=button).first
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    for details in dialog.locator("summary").all():
        details.click()
    assert page.evaluate(POOR) == []
    assert page.evaluate(
        "() => [document.documentElement, document.querySelector('dialog')]"
        ".every((each) => each.scrollWidth <= each.clientWidth)"
    )
    for _ in range(40):  # the focus does not leave the dialog for the page behind it
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()


def test_changes_say_who_did_what_and_who_was_refused_it(look_at: OpenState):
    page = look_at("busy", at="changes", role="admin").page
    changes = panel(page, "Changes")
    rows = changes.get_by_role("list").first.locator("> li")
    expect(rows).to_have_count(6 + 2)  # with the alert that fired and ended
    says(rows.nth(0), "update quota chat", "limit_bytes")
    expect(rows.nth(0)).not_to_contain_text("production")
    expect(rows.nth(0).get_by_role("button", name=re.compile("^Put back the quota chat"))).to_be_visible()
    says(rows.nth(1), "denied", "limited to the tenants")
    page.get_by_role("button", name="Show older ones").click()
    expect(page.get_by_role("button", name="Show older ones")).to_have_count(0)
    expect(rows).to_have_count(6 + 2)  # with the alert that fired and ended
    with page.expect_request(re.compile(r"/audit\?decision=denied&limit=100$")):
        changes.get_by_label("Decision").select_option("denied")
    assert page.url.endswith("#/changes?decision=denied")


def test_over_limit_degraded_and_quarantined_are_the_first_findings(look_at: OpenState):
    page = check_state(look_at("over-limit"))
    expect(verdict(page)).to_have_text("3 warnings")
    for finding in ("Tenant chat is over its limit by 2.2 GiB", "Blocks of tenant code-search are refused (over_limit)",
                    "Pin eval-harness is degraded", "2.4 GiB are quarantined"):  # fmt: skip
        expect(page.get_by_role("link", name=finding)).to_be_visible()


def test_tenants_show_use_against_limit_their_shares_and_what_of_a_floor_is_in_effect(look_at: OpenState):
    page = look_at("over-limit", at="tenants").page
    tenants = panel(page, "Tenants")
    rows = tenants.get_by_role("row")
    says(rows.nth(1), "chat", "over limit", "26.2 GiB of 24 GiB", "109.2 %", "floor 20 GiB, 16 GiB in effect",
         "1 GiB pinned of 4 GiB · weight 2")  # fmt: skip
    says(rows.nth(2), "floor 4 GiB", "rejects at the limit")
    says(rows.nth(3), "observed", "would refuse 388 blocks")
    says(rows.nth(5), "_default", "unmanaged", "no quota")
    says(rows.nth(6), "no limit")
    expect(tenants.get_by_role("img", name="chat uses 26.2 GiB of 24 GiB")).to_be_visible()
    expect(page).to_have_title("Tenants · Larder: 3 warnings")


def test_pins_show_residency_expiry_strength_and_gpu_copies(look_at: OpenState):
    pins = panel(look_at("over-limit", at="pins").page, "Pins").get_by_role("rowgroup").last
    says(pins, "never expires")
    says(pins.get_by_role("row").first, "eval-harness", "degraded", "3,802 of 4,096 resident", "1,990 guaranteed",
         "7.43 GiB", re.compile(r"expires in 1 h \d+ min"))  # fmt: skip
    says(pins.get_by_role("row").last, "incident-1182", re.compile(r"expired \d+ min"))
    says(row_of(pins, "eval-harness"), "1,812 degraded")
    says(row_of(pins, "launch-day-prefix"), "each hit makes it 3 h")
    expect(row_of(pins, "launch-day-prefix")).not_to_contain_text("GPU")
    says(row_of(pins, "warmup-next-model"), "soft", "for GPUs")
    says(row_of(pins, "code-search-tools"), "partly on GPUs", "GPU copies gpu-a1 1,408 of 3,584")
    whole = row_of(pins, "chat-system-prompt")
    says(whole, "permanent", "GPU copies gpu-a1 1,024 of 1,024")
    expect(whole.get_by_text("on GPUs", exact=True)).to_be_visible()


def test_a_node_shows_its_gpu_copies_sweeps_corruption_fragmentation_and_what_an_engine_waits_for(look_at: OpenState):
    page = look_at("over-limit", at="nodes/gpu-a1").page
    gpus = panel(page, "GPU copies of gpu-a1")
    expect(gpus.get_by_role("listitem")).to_have_count(2)
    first = gpus.get_by_role("listitem").first
    says(first, "NVIDIA H200", "GPU-7717ca5e-4f6c-4a3b-9a51-0c5de1c2a901", "full", "2.5 GiB of 2.5 GiB",
         "1,216 GPU copies", "1,088 waiting", "2 readers", "64 MiB leaving", "96 evicted")  # fmt: skip
    expect(first.get_by_role("img", name=re.compile("^GPU copies on NVIDIA H200 GPU-7717"))).to_be_visible()
    main = page.get_by_role("main")
    sweep = "invalidate sweep 3: 4,096 blocks so far, 12 blocks wait for the end of a lease"
    says(main.get_by_role("list", name="Sweeps of gpu-a1"), sweep)
    says(main, "2 corrupt blocks", "waits for pids 18377, 18401", "2 spaces cached", "150 MiB padding")
    says(panel(page, "Pool"), "51.2 MiB free slots")
    engine = panel(page, "Engines").get_by_role("listitem").filter(has_text="disconnected").last
    says(engine, "pid 18377", "2.4 GiB quarantined")


def test_rows_are_links_and_the_arrow_keys_go_through_them(look_at: OpenState):
    page = look_at("over-limit", at="tenants").page
    rows = panel(page, "Tenants").get_by_role("rowgroup").last.get_by_role("row")
    first = rows.first.get_by_role("link").first
    first.focus()
    page.keyboard.press("ArrowDown")
    expect(rows.nth(1).get_by_role("link").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/tenants/chat")
    expect(panel(page, "chat")).to_contain_text("26.2 GiB of 24 GiB")
    page.go_back()
    rows.nth(1).locator("td.evicted").click()
    page.wait_for_url(re.compile(r"#/tenants/.+$"))


@pytest.mark.parametrize("at", ["", "tenants", "nodes/gpu-a1", "settings"])
def test_everything_can_be_reached_by_keyboard_and_shows_its_focus(look_at: OpenState, at: str):
    page = look_at("over-limit", at=at).page
    late = {"": ("Alerts", "No alert is firing"), "settings": ("Tier records", "No tier"),
            "tenants": ("Tenants", "chat"), "nodes/gpu-a1": ("Pushed snapshots", "Nothing was pushed")}[at]  # fmt: skip
    expect(panel(page, late[0])).to_contain_text(late[1])  # what is asked for apart from the overview
    wanted = page.evaluate("document.querySelectorAll('a[href], button, input, select, summary').length")
    seen = set()
    for _ in range(wanted):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => { const e = document.activeElement;
                       return [e.tagName + (e.ariaLabel ?? e.textContent), getComputedStyle(e).outlineStyle]; }"""
        )
        if not name.startswith("BODY"):  # between the last and the first of them
            assert outline != "none", name
            seen.add(name)
    assert any("Settings" in name for name in seen)
    assert len(seen) > wanted / 2


def test_each_page_that_the_navigation_marks_shows_the_reason(look_at: OpenState):
    page = look_at("over-limit", at="blocks").page
    marked = page.get_by_role("navigation", name="Pages").get_by_role("link").filter(has_text="needs attention")
    expect(marked).to_have_text([re.compile("^Tenants"), re.compile("^Pins")])
    reasons = ("Tenant chat is over its limit", "Pin eval-harness is degraded")
    for link, reason in zip(marked.all(), reasons, strict=True):
        link.click()
        says(panel(page, "Needs attention"), reason)
    page.get_by_role("link", name="Nodes", exact=True).click()
    expect(panel(page, "Nodes")).to_be_visible()
    expect(panel(page, "Needs attention")).to_have_count(0)


def test_the_policy_in_force_is_shown_with_its_gate(look_at: OpenState):
    policy = panel(look_at("over-limit", at="policy").page, "In force")
    expect(policy).to_contain_text("s3fifo")
    expect(policy.get_by_text("gate closed", exact=True)).to_be_visible()
    says(policy, "20,310 declined", "evicts above 97.0 % down to 95.0 %")
    expect(panel(look_at("fresh", at="policy").page, "Policies")).to_contain_text("No policy is recorded")


def test_a_fresh_cache_says_how_to_attach(look_at: OpenState):
    page = check_state(look_at("fresh"))
    expect(verdict(page)).to_have_text("All is well")
    tenants = panel(page, "Largest tenants")
    says(tenants, "No tenant has stored anything yet", 'attach("/run/user/1000/larder/engine.sock"')
    expect(panel(page, "Hit ratio")).to_contain_text("nothing asked")
    expect(panel(page, "Refused blocks")).to_contain_text("No block was refused")
    expect(panel(page, "Nodes")).to_contain_text("0 engines")
    page.get_by_role("link", name="Pins").click()
    expect(panel(page, "Pins")).to_contain_text("Nothing is pinned")
    page.get_by_role("link", name="Blocks").click()
    expect(panel(page, "Blocks")).to_contain_text("Nothing is cached")


def test_a_nacked_node_shows_its_faults_and_generations(look_at: OpenState):
    page = check_state(look_at("nacked"))
    expect(verdict(page)).to_have_text("1 problem, 4 warnings")
    page.get_by_role("link", name=re.compile("^Nodes")).click()
    nodes = panel(page, "Nodes")
    for mark in ("nacked", "behind", "joining", "in sync"):
        expect(nodes.get_by_role("table").get_by_text(mark, exact=True)).to_be_visible()
    expect(nodes.get_by_role("row", name=re.compile("^gpu-a2"))).to_contain_text("quotas 14 of 15")
    nodes.get_by_role("link", name="gpu-a2").click()
    node = panel(page, "gpu-a2")
    faults = node.get_by_role("list", name="Faults of gpu-a2")
    says(faults, "quotas[3].limit_bytes", "limit_bytes must be at least floor_bytes (8 GiB).", "BAD_FIELD")
    row = node.get_by_role("table", name="Generations of gpu-a2").get_by_role("row", name="quotas")
    says(row, "15", "not applied")
    page.goto(page.url.partition("#")[0] + "#/nodes/gpu-a1")
    expect(page.get_by_role("list", name="Generations of gpu-a1, as desired")).to_contain_text("quotas 15")


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.full)])
def test_nodes_show_their_labels_how_they_joined_and_what_is_not_as_usual(look_at: OpenState, width: int) -> None:
    page = look_at("nacked", width=width, at="nodes").page
    nodes = panel(page, "Nodes")
    joining = nodes.get_by_role("row", name=re.compile("^gpu-a4"))
    for mark in ("joining", "to drain", "clock 1 h ahead"):
        expect(joining.get_by_text(mark, exact=True)).to_be_visible()
    usual = nodes.get_by_role("row", name=re.compile("^gpu-a1")).locator("td.state")
    expect(usual.locator(".mark")).to_have_text(["in sync"])
    nodes.get_by_role("link", name="gpu-a3").click()
    draining = panel(page, "gpu-a3")
    expect(draining.get_by_text("draining", exact=True)).to_be_visible()
    expect(draining.get_by_text("joined by token 323d00ec")).to_be_visible()
    labels = draining.get_by_label("Labels of gpu-a3")
    expect(labels.get_by_role("listitem")).to_have_text(["gpu=h200", "zone=b"])
    expect(labels.get_by_text("zone=b")).to_have_attribute("title", "Set by an operator")


def test_a_gpu_that_fails_is_the_first_finding_and_nodes_without_one_say_so(look_at: OpenState):
    page = look_at("nacked").page
    expect(page.get_by_role("link", name="GPU copies on a GPU of node gpu-a3 have a problem")).to_be_visible()
    page.get_by_role("link", name="GPU copies on a GPU of node gpu-a3 have a problem").click()
    expect(page.get_by_text("GPU copies: problem", exact=True)).to_be_visible()
    expect(panel(page, "GPU copies of gpu-a3")).to_contain_text("out of memory (CUDA_ERROR_OUT_OF_MEMORY)")
    page = look_at("thousand-tenants").page
    expect(page.get_by_role("link", name="Pin chat-system-prompt has no GPU copies")).to_be_visible()
    page.get_by_role("link", name="Pin chat-system-prompt has no GPU copies").click()
    expect(page.get_by_text("no GPU of gpu-a1 keeps GPU copies").first).to_be_visible()
    held = panel(look_at("thousand-tenants", at="pins").page, "Pins").get_by_role("row")
    expect(held.filter(has_text="chat-system-prompt").get_by_text("on no GPU", exact=True)).to_be_visible()
    fresh = look_at("fresh", at="nodes").page
    fresh.get_by_role("rowheader").get_by_role("link").click()
    expect(panel(fresh, "Engines")).to_be_visible()
    expect(fresh.get_by_text("No GPU here keeps GPU copies")).to_have_count(0)


def test_a_thousand_tenants_can_be_searched_and_sorted_and_the_address_says_so(look_at: OpenState):
    check_state(look_at("thousand-tenants"))
    page = look_at("thousand-tenants", at="tenants").page
    tenants = panel(page, "Tenants")
    expect(tenants).to_contain_text("1,000 tenants")
    expect(tenants.get_by_role("row")).to_have_count(101)
    tenants.get_by_text("the next ones follow as you scroll").scroll_into_view_if_needed()
    expect(tenants.get_by_role("row").nth(150)).to_be_attached()
    tenants.get_by_role("button", name="3 over limit").click()
    expect(tenants.get_by_role("row")).to_have_count(4)
    assert page.url.endswith("#/tenants?show=over")
    tenants.get_by_role("button", name="3 over limit").click()
    tenants.get_by_role("button", name="Refused", exact=True).click()
    expect(tenants.get_by_role("columnheader", name="Refused")).to_have_attribute("aria-sort", "descending")
    expect(tenants.get_by_role("row").nth(1)).to_contain_text("over limit")
    tenants.get_by_role("button", name="Refused", exact=True).click()
    expect(tenants.get_by_role("columnheader", name="Refused")).to_have_attribute("aria-sort", "ascending")
    search = tenants.get_by_role("searchbox", name="Find a tenant")
    search.fill("cost-centre")
    expect(tenants.get_by_role("row")).to_have_count(2)
    page.wait_for_url("**/#/tenants?sort=-refused&find=cost-centre")
    page.reload()
    expect(tenants.get_by_role("row")).to_have_count(2)
    search.fill("nobody")
    expect(tenants).to_contain_text("No tenant matches “nobody”")


def test_a_lost_node_makes_larder_not_ready(look_at: OpenState):
    page = check_state(look_at("lost"))
    expect(verdict(page)).to_have_text("1 problem")
    expect(page.get_by_text("Not ready", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Node gpu-a2 is lost")).to_be_visible()
    expect(panel(page, "Nodes").get_by_text("lost", exact=True)).to_be_visible()
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", "./favicon-bad.svg")


def test_a_finding_leads_to_its_page(look_at: OpenState):
    page = look_at("lost").page
    page.get_by_role("link", name="Node gpu-a2 is lost").focus()
    page.keyboard.press("Enter")
    expect(panel(page, "gpu-a2")).to_be_visible()
    expect(page.get_by_role("main")).to_be_focused()


def test_without_a_node_the_page_says_how_to_start_one(look_at: OpenState):
    page = check_state(look_at("empty"))
    expect(page.get_by_role("link", name="No node has joined")).to_be_visible()
    expect(panel(page, "Nodes")).to_contain_text("larder up")


def test_a_cold_cache_fits_the_screen_and_can_be_read(look_at: OpenState):
    check_state(look_at("cold"))


def test_who_is_limited_to_tenants_sees_theirs_and_is_offered_nothing_else(look_at: OpenState):
    one = look_at("tenant")
    page = check_state(one)
    expect(panel(page, "Pool")).to_contain_text("kept by your tenants, of 64 GiB")
    expect(panel(page, "Pool")).not_to_contain_text("Free")
    expect(panel(page, "Hit ratio")).to_contain_text("since the nodes started")
    expect(panel(page, "History").get_by_role("img")).to_have_count(4)
    expect(panel(page, "Traffic")).to_have_count(0)
    expect(panel(page, "Your tenants").get_by_role("listitem")).to_have_count(2)
    nodes = panel(page, "Nodes")
    expect(nodes.get_by_role("listitem")).to_have_count(2)
    expect(nodes.get_by_role("listitem").first).to_contain_text("pool of 32 GiB")
    expect(nodes.get_by_text("behind", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Node gpu-a2 is behind")).to_have_count(0)
    pages = page.get_by_role("navigation", name="Pages").get_by_role("link")
    expect(pages.filter(has_text="Policy")).to_have_count(0)
    for text in ("may not do this", "reported its statistics", "of this machine"):
        expect(page.get_by_text(text)).to_have_count(0)
    page.get_by_role("link", name="rag-support").click()
    prefixes = panel(page, "Hot prefixes")
    expect(prefixes.get_by_role("listitem")).to_have_count(1)
    expect(prefixes.get_by_role("button", name="Pin p-91ce2f00d3b4a6f8")).to_be_visible()
    for at in ("nodes/gpu-a1", "settings", "changes", "events"):
        one.open(at)
        expect(page.get_by_role("main").locator("section").first).to_be_visible()
        expect(page.get_by_text("may not do this")).to_have_count(0)
    assert not [path for path in one.play.requests if "history" in path]
    for denied in ("audit", "pushes", "managers", "tokens", "policies", "tiers", "rates", "ipc"):
        assert not [path for path in one.play.requests if path.startswith(f"/api/v1/{denied}")], denied


def test_only_an_admin_is_offered_tokens(look_at: OpenState):
    page = look_at("tenant").page
    pages = page.get_by_role("navigation", name="Pages").get_by_role("link")
    names = "Overview, Tenants, Pins, Nodes, Blocks, Changes, Events, Usage, Settings, Docs"
    expect(pages).to_have_text(names.split(", "))
    page.get_by_role("link", name="Usage").click()
    expect(page.get_by_role("rowheader", name="rag-support")).to_be_visible()
    page.get_by_role("link", name="Settings").click()
    expect(panel(page, "About")).to_contain_text("rag-support")
    expect(panel(page, "Tokens")).to_have_count(0)


# ---- the connection


def firing(at: float, **fields: Any) -> dict[str, Any]:
    change = {
        "audit_id": 3, "at": at - 75, "actor": "bob", "action": "update", "kind": "quota", "name": "chat",
        "tenant": "chat", "node": "", "type": "quotas", "generation": 7, "fields": [],
        "summary": "quota chat: limit_bytes 8 GiB → 1 GiB",
    }  # fmt: skip
    return {
        "fingerprint": "a1", "alertname": "LarderTenantRefused", "severity": "critical", "state": "firing",
        "tenant": "chat", "node": "node-a", "summary": "<b>Blocks</b> of chat are refused.",
        "runbook_url": "https://runbook.example/refused", "generator_url": "", "labels": {}, "annotations": {},
        "starts_at": at - 60, "ended_at": None, "received_at": at, "expires_at": at + 900,
        "preceding_changes": [change], **fields,
    }  # fmt: skip


def test_the_page_follows_the_stream_and_says_when_it_cannot(open_state: OpenState):
    one = open_state("busy")
    page, at = one.page, one.play.overview["at"]
    one.hear("engine.released", "gpu-a1", client=1, pid=7, group="llama-70b-z", released_blocks=2, released_bytes=4096)
    events = page.get_by_role("list", name="Events, newest first")
    expect(events.get_by_role("listitem").first).to_contain_text("llama-70b-z: 2 blocks released, 4 KiB")
    # Alerts are read apart from the overview, at their events.
    expect(panel(page, "Alerts")).to_contain_text("No alert is firing")
    one.play.answers["alerts"] = {"items": [firing(at)], "total": 1, "next_cursor": ""}
    one.hear("alert.fired", alertname="X")
    expect(panel(page, "Alerts").get_by_role("listitem")).to_have_count(1)
    expect(verdict(page)).to_have_text("1 alert firing")
    one.play.answers["alerts"] = {"items": [], "total": 0, "next_cursor": ""}
    one.hear("alert.resolved", alertname="X")
    expect(panel(page, "Alerts")).to_contain_text("No alert is firing")
    expect(verdict(page)).to_have_text("All is well")
    one.expects_failures = True
    one.play.streaming = False
    expect(page.get_by_role("status")).to_have_text("Reconnecting")
    expect(page.get_by_text(re.compile(r"data is \d+ s old"))).to_be_visible()
    expect(page.locator("[data-stale=true]")).to_have_css("filter", "grayscale(1)")
    expect(verdict(page)).to_have_text("Last known: all is well")
    expect(panel(page, "Pool")).to_contain_text("47.7 GiB")
    expect(page).to_have_title("Larder: no fresh data")
    one.play.streaming = True
    expect(page.get_by_role("status")).to_have_text("Live")
    expect(page.locator("[data-stale=true]")).to_have_count(0)
    assert one.play.streams >= 2
    one.play.problem, one.play.streaming = PROBLEM, False
    alert = page.get_by_role("alert")
    says(alert, "The database does not answer", "no connection to the database within 5 s", "request req-1182")
    expect(panel(page, "Pool")).to_contain_text("47.7 GiB")
    page.get_by_role("button", name="Try now").click()
    one.play.problem, one.play.streaming = None, True
    expect(alert).to_have_count(0)
    one.play.show("over-limit")
    expect(verdict(page)).to_have_text("3 warnings")
    expect(panel(page, "Refused blocks")).to_contain_text("+21,928")


def test_a_silent_stream_is_opened_again_and_a_tab_that_slept_catches_up(open_state: OpenState):
    one = open_state("busy", shown=False, alone=True)
    status = one.page.get_by_role("status")
    one.page.clock.install()
    one.open().locator("#verdict-title").wait_for()
    expect(status).to_have_text("Live")
    opened = one.play.streams
    one.play.confirming = False
    one.page.clock.run_for(11_000)
    expect(one.page.locator("[data-stale=true]")).to_have_count(1)
    one.page.clock.run_for(3_000)
    one.play.confirming = True
    expect(status).to_have_text("Live")
    assert one.play.streams > opened
    one.play.confirming = False
    one.page.clock.fast_forward(3_600_000)
    one.play.show("over-limit")
    one.play.confirming = True
    one.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(verdict(one.page)).to_contain_text("warnings")
    expect(status).to_have_text("Live")


def test_pins_that_the_overview_leaves_out_are_on_the_page_of_their_tenant(open_state: OpenState):
    one = open_state("busy", shown=False)
    overview = one.play.overview
    one.play.answers["pins"] = {"items": overview["pins"], "total": 5, "next_cursor": ""}
    one.play.overview = {**overview, "pins": [pin for pin in overview["pins"] if pin["tenant"] != "chat"]}
    page = one.open("tenants/chat")
    expect(panel(page, "Pins")).to_contain_text("chat-system-prompt")
    expect(panel(page, "Pins")).not_to_contain_text("incident-1182")


def test_a_tenant_has_its_sessions_by_node_with_what_can_be_done_with_them(open_state: OpenState):
    one = open_state("busy", at="tenants/chat")
    page, sessions = one.page, panel(one.page, "Sessions")
    rows = sessions.get_by_role("rowgroup").last.get_by_role("row")
    expect(rows).to_have_count(4)
    says(rows.nth(0), "support-4471", "gpu-a1", "released", "96 MiB memory", "96 MiB disk", "24 chunks")
    says(rows.nth(1), "agent-7c1e", "idle", "244 MiB archive")
    says(rows.nth(2), "agent-90b3", "gpu-a1", "retained", "ends in 4 min")
    says(rows.nth(3), "agent-90b3", "gpu-a2", "active", "320 MiB memory", "12 MiB")
    expect(sessions).not_to_contain_text("ticket-118")
    sent: list[Any] = []

    def answer(route: Route) -> None:
        sent.append((route.request.url.rpartition("/")[2], route.request.post_data_json))
        acted = {"node": "gpu-a2", "blocks": 160, "bytes": 320 << 20, "refused_blocks": 2, "error": None}
        route.fulfill(json={"session": "agent-90b3", "tenant": "chat", "items": [acted], "total": 1, "blocks": 160,
                             "bytes": 320 << 20, "refused_blocks": 2})  # fmt: skip

    page.route("**/api/v1/sessions/*", answer)
    on = {"tenant": "chat", "node": "gpu-a2"}
    dialog = page.get_by_role("dialog")
    for name, button, action, body in (
        ("Release", "Release agent-90b3", "release", on),
        ("Retain 5 min:", "Retain agent-90b3", "retain", {**on, "seconds": 300}),
        ("Retain 1 h:", "Retain agent-90b3", "retain", {**on, "seconds": 3600}),
        ("Prefetch", "Prefetch agent-90b3", "prefetch", on),
    ):
        rows.nth(3).get_by_role("button", name=f"{name} the session agent-90b3 on gpu-a2").click()
        dialog.get_by_role("button", name=button).click()
        expect(dialog).to_contain_text("gpu-a2: 160 blocks, 320 MiB; 2 blocks refused.")
        dialog.get_by_role("button", name="Done").click()
        assert sent.pop() == (f"agent-90b3:{action}", body)
    one.play.answers["sessions"]["items"][3]["released"] = True
    one.hear("session.action_requested", session="agent-90b3")
    expect(rows.nth(3)).to_contain_text("released")


def test_a_node_that_does_not_list_its_sessions_is_named_once(open_state: OpenState):
    one = open_state("busy", shown=False)
    items = one.play.answers["sessions"]["items"][:3]
    lost = [{"node": "gpu-a2", "error": "gpu-a2: did not answer within 5 s"}]

    def answer(route: Route) -> None:
        at = int(parse_qs(route.request.url.partition("?")[2]).get("cursor", ["0"])[0])
        following = "" if at == 2 else str(at + 1)
        route.fulfill(json={"items": items[at : at + 1], "next_cursor": following, "failed_nodes": lost})

    one.page.route("**/api/v1/sessions?*", answer)
    page = one.open("tenants/chat")
    sessions = panel(page, "Sessions")
    expect(sessions.get_by_role("rowgroup").last.get_by_role("row")).to_have_count(3)
    expect(sessions.get_by_text("Some sessions are missing: gpu-a2: did not answer")).to_have_count(1)


def test_without_sessions_the_page_of_a_tenant_says_how_requests_name_one(open_state: OpenState):
    one = open_state("busy", at="tenants/code-search", role="viewer")
    says(panel(one.page, "Sessions"), "No session of code-search is known", '{"larder.session": "NAME"}')
    one.open("tenants/chat")
    sessions = panel(one.page, "Sessions")
    says(sessions, "agent-7c1e")
    expect(sessions.get_by_role("rowgroup").last.get_by_role("button")).to_have_count(0)


def test_older_changes_stay_while_the_newest_are_read_again(open_state: OpenState):
    one = open_state("busy", at="changes", role="admin", alone=True)
    page = one.page
    rows = panel(page, "Changes").get_by_role("list").first.locator("> li")
    expect(rows).to_have_count(6 + 2)  # with the alert that fired and ended
    items = one.play.audit["items"]
    one.play.older = [{**items[-1], "id": items[-1]["id"] - 1}]
    page.get_by_role("button", name="Show older ones").click()
    expect(rows).to_have_count(7 + 2)
    newer = {**items[0], "id": items[0]["id"] + 1, "name": "newest"}
    one.play.audit = {**one.play.audit, "items": [newer, *items[:-1]]}
    one.hear("quota.changed", tenant="newest")
    expect(rows.first).to_contain_text("newest")
    expect(rows).to_have_count(8 + 2)


def test_changes_of_policies_are_shown_without_the_audit_log(open_state: OpenState):
    one = open_state("busy", role="viewer", shown=False)
    [note] = one.play.answers["annotations"]
    made = {**note["change"], "kind": "policy", "name": "default", "type": "policies"}
    one.play.answers["annotations"] = [
        {**note, "change": {**made, "action": action, "at": at}}
        for action, at in (("create", 1_000.0), ("update", 2_000.0))
    ]
    with one.page.expect_request(lambda request: "/annotations" in request.url and "tags=type%3Apolicy" in request.url):
        page = one.open("policy")
    rows = panel(page, "History").get_by_role("list").first.locator("> li")
    expect(rows).to_have_count(2)
    says(rows.nth(0), "update policy default")
    says(rows.nth(1), "create policy default")


@pytest.mark.parametrize("at", ["usage", "tenants/chat"])
def test_usage_of_the_last_day_is_that_of_the_day_before_now(open_state: OpenState, at: str):
    one = open_state("busy", shown=False, alone=True)
    page = one.page
    page.clock.install()
    one.open(at).locator("#verdict-title, main section").first.wait_for()
    begun = until(lambda: [path for path in one.play.requests if "/usage?" in path], "usage is asked for")
    page.clock.fast_forward(20 * 3_600_000)
    later = until(lambda: [path for path in one.play.requests if "/usage?" in path and path != begun[0]], "again")
    moments = [int(parse_qs(path.partition("?")[2])["from"][0]) for path in (begun[0], later[-1])]
    assert moments[1] - moments[0] == pytest.approx(20 * 3600, abs=120)


def test_a_tenant_with_a_long_name_fits_a_phone(open_state: OpenState):
    one = open_state("busy", 390, shown=False)
    name = "y" * 128
    tenants = one.play.overview["tenants"]
    one.play.overview = {**one.play.overview, "tenants": [{**tenants[0], "tenant": name}, *tenants[1:]]}
    page = one.open(f"tenants/{name}")
    expect(panel(page, "Pins")).to_contain_text("is pinned")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


SHOWN = """state => {
           Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
           document.dispatchEvent(new Event('visibilitychange'));
         }"""


def test_a_hidden_tab_keeps_no_connection_and_follows_the_cache_in_its_title(open_state: OpenState):
    one = open_state("busy", shown=False, alone=True)
    page = one.page
    page.clock.install()
    one.open().locator("#verdict-title").wait_for()
    expect(page.get_by_role("status")).to_have_text("Live")
    page.evaluate(SHOWN, "hidden")
    one.play.show("over-limit")
    until(lambda: one.play.open_streams == 0, "the stream is closed")
    page.clock.run_for(12_000)
    expect(page).to_have_title(re.compile("warnings"))
    assert one.play.open_streams == 0
    page.evaluate(SHOWN, "visible")
    until(lambda: one.play.open_streams == 1, "the stream is open again")
    expect(page.get_by_role("status")).to_have_text("Live")


@pytest.mark.parametrize(("width", "dark"), [(390, True), pytest.param(1440, False, marks=pytest.mark.full)])
def test_firing_alerts_are_shown_beside_the_change_before(open_state: OpenState, width: int, dark: bool):
    one = open_state("busy", width, dark=dark, shown=False)
    at = one.play.overview["at"]
    hostile = firing(
        at, fingerprint="a2", alertname="Hostile" * 12, severity="", tenant="", node="", summary="",
        runbook_url="javascript:alert(1)", preceding_changes=[],
    )  # fmt: skip
    entry = one.play.audit["items"][0]
    alert = firing(at)
    alert["preceding_changes"][0]["audit_id"] = entry["id"]
    one.play.answers["alerts"] = {"items": [alert, hostile], "total": 2, "next_cursor": ""}
    page = one.open()
    items = panel(page, "Alerts").get_by_role("listitem")
    expect(items).to_have_count(2)
    first, second = items.nth(0), items.nth(1)
    says(first, "critical", "<b>Blocks</b> of chat are refused.",
         re.compile(r"tenant chat\s+node node-a\s+since \d+ min"),
         re.compile(r"Preceding change:\s+quota chat: limit_bytes 8 GiB → 1 GiB\s+by bob"))  # fmt: skip
    expect(first.get_by_role("link", name="Runbook")).to_have_attribute("href", "https://runbook.example/refused")
    expect(second).to_contain_text("No change preceded it.")
    expect(second.get_by_role("link")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    with page.expect_request(re.compile(r"/audit\?kind=quota&name=chat&limit=100$")):
        first.get_by_role("link", name=f"audit entry {entry['id']}").click()
    expect(panel(page, "Changes").get_by_label("Only this name")).to_have_value("chat")
    expect(page.locator("main li[aria-current]")).to_have_count(1)


def test_until_there_are_numbers_the_page_says_what_it_waits_for(open_state: OpenState):
    one = open_state("busy", shown=False)
    one.expects_failures = True
    one.play.locked = True
    page = one.open()
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page).to_have_title("Larder: log in")
    assert set(one.play.requests) == {"/api/v1/session"}, "it is not known who asks"
    one.play.locked, one.play.html, one.play.streaming = False, True, False
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("Is a proxy in between?")
    one.play.html, one.play.problem = False, PROBLEM
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("The database does not answer")
    one.play.problem, one.play.streaming = None, True
    expect(verdict(page)).to_have_text("All is well")
    one.play.slow, one.play.confirming = True, False
    page.reload()
    expect(page.get_by_text("Loading the state of the cache")).to_be_attached()
    one.play.slow, one.play.confirming = False, True
    expect(verdict(page)).to_have_text("All is well")


# ---- states that a test makes


def test_charts_cover_the_chosen_time_and_name_their_marks(open_state: OpenState):
    one = open_state("busy", shown=False, role="admin")
    at = one.play.history["at"][-1] - 40
    mark = {"at": at, "kind": "change", "level": "info", "node": None, "tenant": None}
    one.play.marks = [
        {**mark, "title": "update quota chat by bob", "ref": "audit/7"},
        {**mark, "kind": "crash", "level": "error", "title": "the data plane exited", "node": "gpu-a1", "ref": ""},
    ]  # fmt: skip
    page = one.open()
    marks = page.get_by_role("list", name="Marks in the charts, newest first")
    expect(marks.get_by_role("listitem")).to_have_count(2)
    expect(marks.get_by_role("link", name="the data plane exited")).to_have_attribute("href", "#/nodes/gpu-a1")
    expect(marks.get_by_role("link", name="update quota chat")).to_have_attribute("href", "#/changes?entry=7")
    with page.expect_request(re.compile(r"/series\?name=hit_ratio&.*&range_s=86400$")):
        page.get_by_role("button", name="1 day").click()
    assert page.url.endswith("#/?range=1d")
    for place, wanted in (("tenants/chat", "tenant=chat"), ("nodes/gpu-a1", "node=gpu-a1")):
        with page.expect_request(re.compile(rf"/series\?.*&{wanted}&range_s=3600$")):
            one.open(place)
        expect(panel(page, "History").get_by_role("img").first).to_be_visible()


def test_a_page_whose_module_cannot_be_fetched_reloads_the_dashboard(open_state: OpenState):
    """At once the first time, as after an upgrade, and then again and again."""
    shown = open_state("busy")
    page = shown.page
    page.route("**/assets/Tenants-*.js", lambda route: route.abort())
    page.once("load", lambda _: page.unroute("**/assets/Tenants-*.js"))
    page.get_by_role("link", name=re.compile("^Tenants")).click()
    expect(panel(page, "Tenants")).to_be_visible()
    page.route("**/assets/Nodes-*.js", lambda route: route.abort())
    page.get_by_role("link", name=re.compile("^Nodes")).click()
    expect(page.get_by_text("This page could not be loaded")).to_be_visible()
    page.unroute("**/assets/Nodes-*.js")
    expect(panel(page, "Nodes")).to_be_visible()
    assert all("ERR_FAILED" in each for each in shown.complaints)
    shown.complaints.clear()


def test_figures_are_not_known_while_no_node_reports(open_state: OpenState):
    shown = open_state("lost", shown=False)
    for node in shown.play.overview["nodes"]:
        node.update(state="lost", stats=None)
    page = shown.open()
    for title in ("Pool", "Traffic"):
        expect(panel(page, title)).to_contain_text("Not known")
    expect(panel(page, "Traffic")).not_to_contain_text("0 blocks")
    for title in ("Pool", "Largest tenants"):
        expect(panel(page, title)).not_to_contain_text("0 B")
    shown.play.overview["refused"] = {}
    page.reload()
    expect(panel(page, "Refused blocks")).to_contain_text("Not known: no node reports")
    page = shown.open("tenants")
    expect(panel(page, "Tenants").locator("td.used").first).to_contain_text("Not known, limit")
    expect(panel(page, "Tenants").locator("td.hits").first).to_have_text("\N{EN DASH}")
    page = shown.open("pins")
    expect(panel(page, "Pins").get_by_text("not known", exact=True).first).to_be_visible()
    expect(panel(page, "Pins").get_by_role("rowgroup").last).not_to_contain_text("resident")


def test_the_attach_line_can_be_copied(open_state: OpenState):
    page = open_state("fresh", alone=True).page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the lines that attach an engine").click()
    copied = "navigator.clipboard.readText()"
    until(lambda: "from dataplane.client import" in page.evaluate(copied), "the lines are copied")


def test_an_unreachable_api_is_reported_in_words(open_state: OpenState):
    one = open_state("busy", alone=True)
    one.expects_failures = True
    one.page.context.set_offline(True)
    one.play.streaming = False
    expect(one.page.get_by_role("alert")).to_contain_text("The API is unreachable")
    one.play.streaming = True
    one.page.context.set_offline(False)
    expect(one.page.get_by_role("status")).to_have_text("Live")


def test_a_pin_is_offered_only_ends_that_are_later(open_state: OpenState):
    one = open_state("busy", shown=False)
    overview = one.play.overview
    pin = next(pin for pin in overview["pins"] if pin["expires_at"] is not None and not pin["expired"])
    pin["expires_at"] = overview["at"] + 7_200
    page = one.open(f"pins/{pin['name']}")
    offered = page.get_by_role("button", name=re.compile("from now for the pin"))
    expect(offered).to_have_text(["+ 1 day", "+ 1 week"])


def test_a_new_token_is_limited_to_the_tenants_of_its_lines(open_state: OpenState):
    one = open_state("busy", at="settings", role="admin")
    page = one.page
    sent: list[Any] = []

    def answer(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(status=201, json={**sent[-1], "id": "t1", "token": "larder_secret"})

    page.route("**/api/v1/tokens", lambda route: answer(route) if route.request.method == "POST" else route.fallback())
    page.get_by_role("button", name="New token", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("ci")
    dialog.get_by_label("Only for these tenants").fill("team a\nacme, inc\n")
    dialog.get_by_role("button", name="Create the token").click()
    expect(dialog).to_contain_text("It is limited to 2 tenants: team a, acme, inc. Copy it now")
    assert [body["tenants"] for body in sent] == [["team a", "acme, inc"]]


def test_a_session_that_ended_by_itself_says_so(open_state: OpenState):
    one = open_state("busy", shown=False)
    one.expects_failures = True
    for session in (True, False):  # without one, the first token was created meanwhile
        one.play.locked, one.play.streaming = False, True
        one.play.session = {**one.play.session, "session": session}
        page = one.open()
        page.reload()
        expect(page.get_by_role("region", name="Nodes").first).to_be_visible()
        one.play.locked, one.play.streaming = True, False
        expect(page.get_by_label("Token")).to_be_visible()
        expect(page.get_by_text("Your session has ended")).to_have_count(int(session))


def test_traffic_is_hidden_until_it_is_wanted_and_events_can_be_paused_and_found(open_state: OpenState):
    one = open_state("busy", at="events")
    page, events = one.page, panel(one.page, "Events")
    rows = events.get_by_role("listitem")
    expect(events).to_contain_text("engine.attached")
    expect(events).not_to_contain_text("blocks.stored")
    events.get_by_role("button", name="Traffic").click()
    expect(events).to_contain_text("blocks.stored")
    assert page.url.endswith("#/events?traffic=shown")
    events.get_by_role("searchbox", name="Find in events").fill("engine.attached")
    expect(events).not_to_contain_text("blocks.stored")
    expect(rows.first).to_contain_text("engine.attached")
    events.get_by_role("searchbox", name="Find in events").fill("")
    events.get_by_role("button", name="Pause").click()
    one.hear("pin.expired", "gpu-a1", pin="late-pin")
    # The overview that comes after the event is the signal that the event was heard.
    one.play.overview = {**one.play.overview, "ready": False}
    expect(page.get_by_text("Not ready", exact=True)).to_be_visible()
    expect(events).not_to_contain_text("late-pin")
    expect(events.get_by_role("button", name="Pause, 1 new event")).to_be_visible()
    events.get_by_role("button", name="Pause").click()
    expect(events).to_contain_text("late-pin")
    events.get_by_role("button", name="Trouble only").click()
    expect(events).to_contain_text("late-pin")
    expect(events).not_to_contain_text("engine.attached")


def test_older_events_follow_a_paused_list_once_each(open_state: OpenState):
    one = open_state("busy", shown=False)
    expired = {"name": "pin.expired", "node": "gpu-a1", "actor": ""}
    kept = [{**expired, "id": id_, "at": 1_000.0 + id_, "fields": {"pin": f"p{id_}"}} for id_ in range(9, 0, -1)]
    not_kept = {"before": 0, "names": [], "dropped": 0, "lost": 0}
    one.play.answers["events/history"] = {"items": kept[:5], "total": 9, "next_cursor": "", "not_kept": not_kept}
    page = one.open("events")
    events = panel(page, "Events")
    expect(events.get_by_text("p5", exact=False).first).to_be_visible()
    shown = events.get_by_role("listitem").count()
    events.get_by_role("button", name="Pause").click()
    for i in range(250):  # those of the history leave the live list
        one.hear("pin.expired", "gpu-a1", pin=f"late-{i}")
    expect(events.get_by_role("button", name="Pause, more than 200 new events")).to_be_visible()
    one.play.answers["events/history"] = {"items": kept, "total": 9, "next_cursor": "", "not_kept": not_kept}
    events.get_by_role("button", name="Show older ones").click()
    expect(events.get_by_role("listitem")).to_have_count(shown + 4)
    expect(events).not_to_contain_text("late-")
    events.get_by_role("button", name="Pause").click()
    expect(events).to_contain_text("late-249")
    expect(events.get_by_text(re.compile("^p9"))).to_have_count(1)


def test_older_events_of_one_node_do_not_stand_among_those_of_all(open_state: OpenState):
    one = open_state("busy", shown=False)
    item = {"id": 1, "at": 1_000.0, "name": "pin.expired", "node": "gpu-a1", "actor": "", "fields": {"pin": "ancient"}}
    page = one.open("events?node=gpu-a1")
    events = panel(page, "Events")
    expect(events.get_by_role("listitem").first).to_be_visible()
    not_kept = {"before": 0, "names": [], "dropped": 0, "lost": 0}
    one.play.answers["events/history"] = {"items": [item], "total": 1, "next_cursor": "", "not_kept": not_kept}
    events.get_by_role("button", name="Show older ones").click()
    expect(events).to_contain_text("ancient")
    events.get_by_label("Node").select_option("")
    expect(events.get_by_role("button", name="Show older ones")).to_be_visible()
    expect(events).not_to_contain_text("ancient")


def test_whoever_only_reads_sees_no_button_that_would_fail(open_state: OpenState):
    one = open_state("busy", role="viewer", shown=False)
    changing = re.compile(
        r"^(New|Edit|Delete|Release|Adopt|Drain|Forget|Expel|Extend|Demote|Invalidate|Pin|Prefetch|Put|Retain|Revoke) "
    )
    for at in PAGES:
        main = one.open(at).get_by_role("main")
        main.locator("section").first.wait_for()
        expect(main.get_by_role("button", name=changing)).to_have_count(0)


def test_names_of_others_are_shown_with_escapes_for_what_cannot_be_seen(open_state: OpenState):
    one = open_state("busy", at="tenants", shown=False)
    first, second, *rest = one.play.overview["tenants"]
    renamed = [{**first, "tenant": "chat\u202etahc"}, {**second, "tenant": " "}]
    one.play.overview = {**one.play.overview, "tenants": [*renamed, *rest]}
    one.open("tenants")
    tenants = panel(one.page, "Tenants")
    expect(tenants.get_by_text("chat\\u202etahc", exact=True)).to_be_visible()
    expect(tenants.get_by_text("' '", exact=True)).to_be_visible()


def tier_record(name: str = "nvme", **fields: Any) -> dict[str, Any]:
    """A tier that one node serves and another refuses."""
    nodes = {"gpu-a1": NodeProgress(3, "in_sync"), "gpu-a2": NodeProgress(2, "nacked")}
    stats = {"gpu-a1": TierStats(name, "disk", 2 << 40, True, blocks=1040, stored_bytes=65 << 20)}
    answer = TierAnswer(
        unspilled_bytes=0,
        name=name, type="disk", budget_bytes=2 << 40, parameters={"directories": ["/mnt/nvme0/larder"]}, order=1,
        spill="commit", load_deadline_s=5.0, max_bytes_in_flight=64 << 20, compress="none", note="", managed_by="",
        selector=None, generation=3, etag='"3"', created_at=0.0, updated_at=0.0, blocks=1040, stored_bytes=65 << 20,
        logical_bytes=64 << 20, stats=stats,
        faults={"gpu-a2": [TierRefusal("tiers.nvme.name", "bad_field", "'nvme' is a tier of the settings")]},
        status=RecordStatus(accepted=True, applied=False, nodes=nodes),
    )  # fmt: skip
    return {**msgspec.to_builtins(answer), **fields}


@pytest.mark.parametrize(("width", "dark"), [(390, True), pytest.param(1440, False, marks=pytest.mark.full)])
def test_tier_records_are_shown_with_their_state_on_each_node(open_state: OpenState, width: int, dark: bool):
    one = open_state("busy", width, dark=dark, shown=False)
    hostile = tier_record("<b>" + "x" * 60, status={"accepted": True, "applied": True, "nodes": {}, "conditions": []},
                          stats={}, faults={}, note="n" * 300)  # fmt: skip
    one.play.answers["tiers"] = {"items": [tier_record(), hostile], "total": 2, "next_cursor": ""}
    page = one.open("settings")
    tiers = panel(page, "Tier records")
    says(tiers, "not applied", "65 MiB in 1,040 blocks, at most 2 TiB on each node", "no node is selected",
         "gpu-a1: in sync, generation 3, in service", "gpu-a2: nacked, generation 2, not open",
         "gpu-a2 refused tiers.nvme.name: 'nvme' is a tier of the settings")  # fmt: skip
    expect(tiers.get_by_role("button", name="Edit the tier nvme")).to_be_visible()
    expect(tiers.get_by_role("button", name="Delete the tier nvme")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_changed_tier_record_is_read_at_once(open_state: OpenState):
    one = open_state("over-limit", at="settings")
    page = one.page
    expect(panel(page, "Tier records")).to_contain_text("No tier is recorded")
    one.play.answers["tiers"] = {"items": [tier_record()], "total": 1, "next_cursor": ""}
    one.hear("tier.created", tier="nvme")
    expect(panel(page, "Tier records")).to_contain_text("nvme")
    one.play.answers["tiers"] = {"items": [], "total": 0, "next_cursor": ""}
    one.hear("tier.deleted", tier="nvme")
    expect(panel(page, "Tier records")).to_contain_text("No tier is recorded")


def test_messages_that_are_equal_are_all_shown(open_state: OpenState):
    one = open_state("busy", shown=False)
    refusal = TierRefusal("tiers.nvme.name", "bad_field", "'nvme' is a tier of the settings")
    tier = tier_record(faults=msgspec.to_builtins({"gpu-a2": [refusal, refusal]}))
    one.play.answers["tiers"] = {"items": [tier], "total": 1, "next_cursor": ""}
    policy = one.play.answers["policies"]["items"][0]
    silent = [
        {"type": type_, "status": "Unknown", "reason": "NodeLost", "message": "gpu-a2 is silent", "since": 0.0}
        for type_ in ("Applied", "Effective")
    ]
    policy["status"]["nodes"]["gpu-a2"] = {"observed_generation": 0, "state": "lost", "conditions": silent}
    page = one.open("policy")
    says(panel(page, "Policies"), "gpu-a2 does not report; receives it when it reconnects", "gpu-a2 is silent")
    one.open("settings")
    expect(panel(page, "Tier records").get_by_text("gpu-a2 refused tiers.nvme.name")).to_have_count(2)
