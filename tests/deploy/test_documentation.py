"""Links between the pages, and from the code to the pages, lead somewhere; the site builds without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.tools import ROOT, sections

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
SOURCES = sorted(
    path
    for folder in ("app", "dataplane", "migrations", "benchmarks", "examples", "web/src", "deploy", "docs", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".ts", ".svelte", ".yml", ".yaml", ".md", ".env")
)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]*)(#[^)\s]*)?\)")
_OWN = re.compile(r"\]\(#([^)\s]*)\)")
MAX_WORDS = 20_960
"""Words of all pages of `docs/` that are written by hand. Shorten a page before you raise it."""
_NO_PROSE = re.compile(r"^ *```.*?^ *```|<!--.*?-->", re.DOTALL | re.MULTILINE)
_MENTION = re.compile(r"\b(?:docs|benchmarks)/[\w/-]+\.md\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in _LINK.findall(text):
        found = page.parent / target
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor[1:] in sections(found), f"{target}{anchor}"
    for anchor in _OWN.findall(text):
        assert anchor in sections(page), f"#{anchor}"


def test_pages_that_files_mention_exist() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {mention}"
        for path in [*ROOT.glob("*.md"), *ROOT.glob("*.yml"), *SOURCES]
        for mention in _MENTION.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / mention).is_file()
    }
    assert missing == set()


def words(page: Path) -> int:
    """Number of words of a page, without code blocks and the bars of tables."""
    return sum(any(map(str.isalnum, word)) for word in _NO_PROSE.sub("", page.read_text(encoding="utf-8")).split())


def test_pages_written_by_hand_stay_short() -> None:
    by_hand = {
        str(page.relative_to(ROOT)): words(page)
        for page in (ROOT / "docs").rglob("*.md")
        if "decisions" not in page.parts and "Made by docs/generate.py" not in page.read_text(encoding="utf-8")
    }
    longest = sorted(by_hand.items(), key=lambda each: -each[1])[:5]
    assert sum(by_hand.values()) <= MAX_WORDS, longest
    assert words(ROOT / "README.md") <= 600


@pytest.mark.full
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "site" / "contribute" / "contributing.html").is_file()
