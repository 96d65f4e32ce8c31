"""axe-core finds no violation of WCAG 2.2 AA on any page, in any dialog, and in the palette."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.require import require
from tests.web.conftest import OpenState, look
from tests.web.pages import PAGES
from tests.web.player import WEB
from tests.web.test_recorded_states import NAMES

pytestmark = pytest.mark.browser

AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
RUN = """async (tags) => {
  const options = { runOnly: { type: 'tag', values: tags }, resultTypes: ['violations'] };
  const { violations } = await axe.run(document, options);
  return violations.flatMap(({ id, nodes }) => nodes.map(
    ({ target, failureSummary, html }) => `${id}: ${target} ${html.slice(0, 200)} ${failureSummary}`));
}"""
LOOKS = ((1440, "light"), (360, "dark"))
OTHER_LOOKS = ((1440, "dark"), (360, "light"))


def violations(page: Page) -> Any:
    """Each as one line. The test's browser evaluates axe: the page's policy forbids scripts of others."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    return page.evaluate(RUN, TAGS)


def in_each_look(state: str) -> list[Any]:
    return [
        pytest.param(state, looks, marks=() if daily else pytest.mark.full, id=f"{state}-{looks[0][1]}")
        for looks, daily in ((LOOKS, state == "busy"), (OTHER_LOOKS, False))
    ]


@pytest.mark.parametrize(("state", "looks"), [case for state in NAMES for case in in_each_look(state)])
def test_every_page_is_accessible(open_state: OpenState, state: str, looks: Any) -> None:
    require(AXE.is_file(), "axe-core is not installed (make web)")
    one = open_state(state, shown=False, role="" if state == "tenant" else "admin")
    one.expects_failures = True  # some states have no such tenant, pin or node
    found = []
    for at in PAGES:
        page = one.open(at)
        page.get_by_role("main").locator("section").first.wait_for()
        for width, scheme in looks:
            look(page, width, scheme)
            found += [f"{at} {width} {scheme} {each}" for each in violations(page)]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("looks", [LOOKS, pytest.param(OTHER_LOOKS, marks=pytest.mark.full)])
def test_dialogs_and_the_palette_are_accessible(open_state: OpenState, looks: Any) -> None:
    require(AXE.is_file(), "axe-core is not installed (make web)")
    one = open_state("busy", shown=False, role="admin")
    one.expects_failures = True  # a fixture cannot be changed, not even for a preview
    found = []
    for at, button in DIALOGS:
        page = one.open(at)
        page.get_by_role("main").get_by_role("button", name=button).first.click()
        dialog = page.get_by_role("dialog")
        dialog.wait_for()
        for details in dialog.locator("summary").all():
            details.click()
        for width, scheme in looks:
            look(page, width, scheme)
            found += [f"{at} {button} {width} {scheme} {each}" for each in violations(page)]
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    page.keyboard.press("Control+k")
    page.get_by_role("dialog").get_by_role("combobox").fill("a")
    page.get_by_role("listbox", name="Found").get_by_role("option").first.wait_for()
    found += violations(page)
    assert found == [], "\n".join(found)


DIALOGS: list[tuple[str, str | re.Pattern[str]]] = [
    ("tenants", "New quota"),
    ("tenants/chat", "Delete the quota of chat"),
    ("tenants/chat", re.compile("^Release the session ")),
    ("pins", "New pin"),
    ("pins/launch-day-prefix", re.compile(r"^\+ ")),
    ("pins", re.compile("^(Release|Delete)")),
    ("policy", "New policy"),
    ("settings", "New tier"),
    ("settings", "New token"),
    ("settings", re.compile("^Revoke ")),
    ("nodes/gpu-a1", re.compile("^Expel .*")),
    ("nodes/gpu-a1", "Drain"),
    ("blocks?tenant=chat", "Invalidate all of these"),
    ("changes", re.compile("^Put back the quota chat")),
]


def test_the_login_and_a_problem_are_accessible(open_state: OpenState) -> None:
    require(AXE.is_file(), "axe-core is not installed (make web)")
    one = open_state("busy", shown=False)
    one.expects_failures = True
    one.play.locked = True
    page = one.open()
    page.get_by_label("Token").wait_for()
    assert violations(page) == []
    one.play.locked = False
    one.play.html, one.play.streaming = True, False
    page.reload()
    page.get_by_role("alert").first.wait_for()
    assert violations(page) == []
