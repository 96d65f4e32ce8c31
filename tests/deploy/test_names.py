"""Metrics, settings, events and problems that configuration and hand-written pages name are those that Larder has.

The pages of `docs/reference/` that the code makes are the catalogue; `tests/dataplane/test_docs_are_current.py` holds
them against the code.
"""

import re
from pathlib import Path

import pytest

from tests.deploy.tools import ROOT

REFERENCE = ROOT / "docs" / "reference"
GENERATED = "Made by docs/generate.py"
KINDS = {".md", ".yml", ".yaml", ".json", ".env", ".tpl", ".txt", ".py", ".toml", ".service"}
FILES = sorted(
    path
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("*.yml"),
        *(each for folder in ("deploy", "docs", "examples") for each in (ROOT / folder).rglob("*")),
    ]
    if path.suffix in KINDS and path.name != "CHANGELOG.md" and GENERATED not in path.read_text(encoding="utf-8")[:200]
)


def listed(*pages: str) -> set[str]:
    """Return what the generated pages have between backticks."""
    return {
        name for page in pages for name in re.findall(r"`([^`\s]+)`", (REFERENCE / page).read_text(encoding="utf-8"))
    }


METRICS = {name.rpartition(":")[2] for name in listed("metrics.md", "vllm-connector.md")}
VARIABLES = listed("settings.md", "cli.md")
SETTINGS = {name.removeprefix("LARDER_").lower().replace("__", ".") for name in VARIABLES}
EVENTS = listed("events.md", "log-lines.md")
SUBJECTS = set(re.findall(r"^\| `([a-z_]+)\.", (REFERENCE / "events.md").read_text(encoding="utf-8"), re.MULTILINE))
SUBJECTS -= {"dataplane"}  # `dataplane.…` is a setting, too
PROBLEMS = listed("errors.md")
OTHER_VARIABLES = {
    "LARDER_ADMIN_TOKEN",
    "LARDER_GRAFANA_ALERTS_PAUSED",
    "LARDER_PORT",
    "LARDER_SECRETS",
    "LARDER_SHIM",
    "LARDER_SHIM_UNREAD_S",
    "LARDER_SHM_SIZE",
    "LARDER_TEST_VLLM",
    "LARDER_TOKEN_FILE",
}
"""Variables of Compose, of the chart's own program and of the shim, and the one that Kubernetes sets for a service."""
NO_METRICS = {"larder_connector", "larder_pool_max_blocks", "larder_shim", "larder_tokens", "larder_url"}
"""What a recipe adds, a plugin, a library, and variables of programs."""
NO_EVENTS = {"manager.env", "snapshot.apply", "tier.load", "tier.spill"}
"""A value of the chart, and spans."""
NO_SETTINGS = {"dataplane.client", "dataplane.ipc", "dataplane.env", "dataplane.tiers", "dataplane.uid"}
"""Packages, and values of the chart."""


def unknown(text: str) -> set[str]:
    """Return the names in a text that Larder does not have."""
    text = re.sub(r"\b[a-z_]+:larder_\w+:\w+", "", text)  # recorded by the rules, see `test_alerts.py`
    metrics = {
        name
        for name in re.findall(r"(?<![\w.])larder_[a-z0-9_]+[a-z0-9]\b(?![(\w*{/.=-]|_)", text)
        if name not in METRICS and re.sub("_(bucket|sum|count)$", "", name) not in METRICS
    }
    variables = set(re.findall(r"\bLARDER_[A-Z0-9_]*[A-Z0-9]\b(?!_)", text))
    dotted = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", text))
    events = {
        name for name in dotted if name.partition(".")[0] in SUBJECTS and not name.endswith((".py", ".key", ".json"))
    }
    settings = {name for name in dotted if name.startswith(("app.", "dataplane.")) and not name.endswith(".py")}
    problems = set(re.findall(r"urn:larder:problem:([a-z-]+)", text))
    return (
        (metrics - NO_METRICS)
        | (variables - VARIABLES - OTHER_VARIABLES)
        | (events - EVENTS - NO_EVENTS)
        | (settings - SETTINGS - EVENTS - NO_SETTINGS)
        | (problems - PROBLEMS)
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_a_file_exist(path: Path) -> None:
    assert unknown(path.read_text(encoding="utf-8")) == set()


def test_wrong_names_are_found() -> None:
    wrong = {
        "larder_pool_byte": "sum(larder_pool_byte) > 1",
        "LARDER_APP__JOIN": "LARDER_APP__JOIN: tcp://",
        "app.join": "Set `app.join`.",
        "tier.gone": "The event `tier.gone`.",
        "wrong": "urn:larder:problem:wrong",
    }
    for name, text in wrong.items():
        assert unknown(text) == {name}, text
