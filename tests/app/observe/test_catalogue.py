"""The catalogue of events: complete, documented, and published."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from app.descriptions import descriptions
from app.observe.catalogue import CATALOGUE, NOT_STORED, OF_DATA_PLANES, OF_MANAGEMENT_PLANE, name_of
from app.observe.catalogue.records import RECORD_EVENTS
from app.services.documents.resource_types import KINDS
from app.services.records.ceilings import CEILINGS
from app.services.records.prefill_rates import PREFILL_RATES
from app.services.records.tokenizers import TOKENIZERS
from dataplane.protocol.event import COMMON_FIELDS
from dataplane.protocol.event_sums import BLOCK_TRAFFIC

ROOT = Path(__file__).parents[3]
DECLARING = ("app/observe/catalogue/", "dataplane/protocol/event", "dataplane/observe/log.py")
IRREGULAR = {"broken", "forgotten", "lost", "sent", "timed_out"}
"""Participles without the ending -ed."""
EVENTS = [*OF_MANAGEMENT_PLANE, *OF_DATA_PLANES]
OF_RECORDS = {event for events in RECORD_EVENTS.values() for event in events}
"""Events that are made from the types of records."""


def modules(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules whose text has one of these words; others cannot matter and take seconds to parse."""
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    for plane in ("app", "dataplane"):
        for path in sorted((ROOT / plane).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if pattern.search(text):
                yield str(path.relative_to(ROOT)), ast.parse(text)


def test_a_name_is_a_noun_and_a_past_participle() -> None:
    for name in CATALOGUE:
        noun, _, participle = name.partition(".")
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", noun), name
        word = participle.rpartition("_")[2]
        assert word.endswith("ed") or {word, participle} & IRREGULAR or participle == "started_cold", name


def test_names_and_classes_are_unique_and_agree() -> None:
    assert len(CATALOGUE) == len(EVENTS)
    for kind in EVENTS:
        assert kind.__name__.lower() == name_of(kind).replace(".", "").replace("_", "")


def test_every_event_is_declared_in_the_catalogue() -> None:
    declared = {kind.__name__ for kind in EVENTS} | {"NodeStats"}
    for path, tree in modules("tag"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(
                word.arg == "tag" and isinstance(base, ast.Name) and base.id.endswith(("Event", "EventStruct"))
                for word in node.keywords
                for base in node.bases
            ):
                assert node.name in declared, path


def test_every_event_is_published_somewhere() -> None:
    used: set[str] = set()
    for path, tree in modules(*(kind.__name__ for kind in EVENTS)):
        if not path.startswith(DECLARING):
            used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert {kind.__name__ for kind in EVENTS if kind not in OF_RECORDS} - used == set()
    nouns = {kind.noun for kind in (*KINDS.values(), CEILINGS, PREFILL_RATES, TOKENIZERS)}
    assert set(RECORD_EVENTS) == nouns


def test_every_event_and_each_field_has_a_meaning() -> None:
    for kind in EVENTS:
        assert (kind.__doc__ or "").rstrip().endswith("."), f"{kind} has no docstring"
        described = {} if kind in OF_RECORDS else descriptions(kind)
        for field in msgspec.structs.fields(kind):
            assert field.name in described or field.name in COMMON_FIELDS, (kind, field.name)


def test_common_fields_are_fields_of_events() -> None:
    of_bus = {"actor", "at", "node"}
    fields = {field.name for kind in EVENTS for field in msgspec.structs.fields(kind)} | of_bus
    assert set(COMMON_FIELDS) - fields == set()


def test_changes_and_refusals_are_stored() -> None:
    assert "blocks.refused" not in NOT_STORED
    assert not [
        name
        for name in NOT_STORED
        if name.endswith((".created", ".changed", ".deleted")) and name not in ("segment.created", "admission.changed")
    ]


def test_exactly_the_block_events_can_be_summed() -> None:
    assert {kind for kind in EVENTS if kind.per_block} == set(BLOCK_TRAFFIC)


NAMED = re.compile(r"""['"`]([a-z_]+\.[a-z_]+)['"`]""")
ALTERNATIVES = re.compile(r"\(([a-z_|]+)\)\\\.\(([a-z_|]+)\)")
"""An expression for several events, such as `(quota|pin)\\.(created|deleted)`."""
NOUNS = {name.partition(".")[0] for name in CATALOGUE}
REFERENCE = ROOT / "docs/reference"
SETTINGS = {
    name.lower().replace("__", ".")
    for name in re.findall(r"`LARDER_([A-Z_]+)`", (REFERENCE / "settings.md").read_text(encoding="utf-8"))
}
METRICS = set(re.findall(r"^\| `(larder_\w+)`", (REFERENCE / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("pattern", ["web/src/**/*", "tests/web/*.py"])
def test_only_names_of_the_catalogue_are_used(pattern: str) -> None:
    named, count = set(), 0
    for path in ROOT.glob(pattern):
        if path.suffix in (".ts", ".svelte", ".json", ".py", ".md", ".yml", ".yaml"):
            text = path.read_text(encoding="utf-8")
            found = set(NAMED.findall(text))
            for nouns, verbs in ALTERNATIVES.findall(text):
                found |= {f"{noun}.{verb}" for noun in nouns.split("|") for verb in verbs.split("|")}
            count += len(found & CATALOGUE.keys())
            named |= {(path.name, name) for name in found if name.partition(".")[0] in NOUNS}
    assert count
    known = CATALOGUE.keys() | SETTINGS | {"tokenizer.json"}
    assert {(file, name) for file, name in named if name not in known} == set()


@pytest.mark.parametrize("folder", ["web/src", "tests/web", "app/cli"])
def test_only_metrics_and_settings_that_there_are_are_named(folder: str) -> None:
    unknown = set()
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in (".ts", ".svelte", ".json", ".py", ".md", ".yml", ".yaml"):
            text = path.read_text(encoding="utf-8")
            metrics = re.findall(r"\blarder_[a-z_]+_(?:total|bytes|seconds|blocks|ratio)\b", text)
            unknown |= {(path.name, name) for name in metrics if name not in METRICS}
            names = re.findall(r"\bLARDER_([A-Z]+(?:_[A-Z0-9]+|__[A-Z0-9]+)*)\b(?!_)", text)
            unknown |= {(path.name, name) for name in names if name.lower().replace("__", ".") not in SETTINGS}
    assert unknown == set()
