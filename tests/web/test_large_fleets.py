"""Lists of 10,000 rows, and a fleet of 50 nodes, keep the page small: tests count the rows that it lays out."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.larder import until
from tests.web.conftest import OpenState
from tests.web.player import listed

pytestmark = pytest.mark.browser

MANY = 10_000
MAX_ROWS = 400
"""Four pages of a table; see web/src/parts/Table.svelte."""


def many(record: dict[str, Any], field: str) -> dict[str, Any]:
    return listed([{**record, field: f"row-{number:05}"} for number in range(MANY)])


def body(page: Page) -> Locator:
    return page.get_by_role("main").get_by_role("table").first.get_by_role("rowgroup").last


def laid_out(page: Page) -> int:
    return body(page).get_by_role("row").count()


def scrolled_to(page: Page, row: int) -> bool:
    """Scroll one step down; whether the row is laid out by now."""
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    return page.get_by_role("main").get_by_text(f"row-{row:05}", exact=True).count() > 0


@pytest.mark.parametrize(("at", "field"), [("tenants", "tenant"), ("pins", "name")])
@pytest.mark.parametrize("width", [1440, pytest.param(360, marks=pytest.mark.full)])
def test_a_long_table_is_laid_out_in_parts_and_found_in_whole(
    open_state: OpenState, at: str, field: str, width: int
) -> None:
    one = open_state("busy", width, shown=False)
    one.play.answers[at] = many(one.play.overview[at][0], field)
    one.play.overview = {**one.play.overview, at: []}
    page = one.open(f"{at}?sort={field}")
    section = page.get_by_role("main").locator("section").first
    expect(section).to_contain_text("of 10,000 rows")
    assert laid_out(page) <= MAX_ROWS
    until(lambda: scrolled_to(page, 999), "a thousand rows were scrolled")
    assert laid_out(page) <= MAX_ROWS
    page.evaluate("scrollTo(0, 0)")
    until(lambda: page.evaluate("scrollY") == 0 and section.locator(".gap").count() == 0, "the top is back")
    assert laid_out(page) <= MAX_ROWS
    section.get_by_role("searchbox", name="Find a").fill("row-07777")
    expect(body(page).get_by_role("row")).to_have_count(1)


def test_ten_thousand_blocks_are_laid_out_in_parts(open_state: OpenState) -> None:
    one = open_state("busy", shown=False)
    block = one.play.answers["blocks"]["items"][0]
    items = [{**block, "key": f"{number:064x}", "parent": ""} for number in range(MANY)]
    one.play.answers["blocks"] = {"items": items, "failed_nodes": [], "next_cursor": ""}
    page = one.open("blocks")
    rows = page.get_by_role("list", name="Prefixes, the largest first").get_by_role("listitem")
    expect(page.get_by_role("main")).to_contain_text("10,000 blocks")
    expect(rows).to_have_count(200)
    page.get_by_role("button", name="Show 200 more").click()
    expect(rows).to_have_count(400)


def test_fifty_nodes_and_two_hundred_tenants_are_shown(open_state: OpenState) -> None:
    one = open_state("thousand-tenants", shown=False)
    overview = one.play.overview
    node = overview["nodes"][0]
    nodes = [{**node, "name": f"gpu-{number:02}"} for number in range(50)]
    one.play.overview = {**overview, "nodes": nodes, "tenants": overview["tenants"][:200], "tenants_total": 200}
    page = one.open()
    expect(page.get_by_role("link", name="All 50 nodes")).to_be_visible()
    assert page.get_by_role("region", name="Nodes", exact=True).get_by_role("listitem").count() <= 20
    one.open("nodes")
    expect(body(page).get_by_role("row")).to_have_count(50)
    one.open("tenants")
    expect(body(page).get_by_role("row")).to_have_count(100)
