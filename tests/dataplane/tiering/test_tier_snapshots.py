"""Snapshots of tiers are validated whole, with the checks of the tier types, and handed over whole."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import msgspec
import pytest

from dataplane.protocol.control.snapshots import Fault, Snapshot
from dataplane.protocol.tier_directory import MAX_TIERS
from dataplane.protocol.tiers import TierSpec
from dataplane.tiers.registry import tier_faults_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

PAGE = 4096
SETTINGS = "disk"


class Recorder:
    """Takes records, and opens nothing."""

    names_of_settings: Set[str] = frozenset((SETTINGS,))

    def __init__(self) -> None:
        self.applied: list[list[TierSpec]] = []

    def check(self, spec: TierSpec) -> Sequence[tuple[str, str]]:
        return tier_faults_of(spec)

    def apply(self, specs: Sequence[TierSpec], now: float) -> None:
        self.applied.append(list(specs))


def record(name: object = "t", **fields: object) -> dict[str, Any]:
    parameters = {"directories": ["/mnt/x"], "segment_bytes": 1 << 20}
    return {"name": name, "type": "disk", "budget_bytes": 1 << 30, "parameters": parameters, **fields}


def body(records: list[dict[str, Any]], generation: int = 1, *, dry_run: bool = False) -> Snapshot:
    snapshot = make.snapshot("tiers", msgspec.msgpack.encode(records), generation)
    return msgspec.structs.replace(snapshot, dry_run=dry_run)


def found(faults: list[Fault]) -> list[tuple[str, str]]:
    return [(fault.path, fault.code) for fault in faults]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def bench(recorder: Recorder) -> Bench:
    bench = Bench(64 * PAGE)
    bench.node.intent.tiers = recorder
    return bench


def test_valid_tiers_are_handed_over_and_observed(bench: Bench, recorder: Recorder) -> None:
    assert bench.apply(body([record("a"), record("b", order=1, spill="off")])) == []
    assert [[spec.name for spec in specs] for specs in recorder.applied] == [["a", "b"]]
    assert recorder.applied[0][1].order == 1
    assert bench.node.intent.observed["tiers"].generation == 1


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": SETTINGS}, "name"),
        ({"type": "floppy"}, "type"),
        ({"budget_bytes": 0}, "budget_bytes"),
        ({"budget_bytes": 4096}, "budget_bytes"),
        ({"budget_bytes": "1"}, "budget_bytes"),
        ({"order": 1001}, "order"),
        ({"order": -1}, "order"),
        ({"spill": "always"}, "spill"),
        ({"load_deadline_s": 0.0}, "load_deadline_s"),
        ({"load_deadline_s": float("nan")}, "load_deadline_s"),
        ({"max_bytes_in_flight": 1}, "max_bytes_in_flight"),
        ({"parameters": {}}, "parameters.directories"),
        ({"parameters": {"directories": ["here"]}}, "parameters.directories[0]"),
        ({"parameters": {"directories": ["/x"], "colour": 1}}, "parameters.colour"),
        ({"type": "s3", "parameters": {"endpoint": 3}}, "parameters.endpoint"),
    ],
)
def test_a_fault_names_its_field(bench: Bench, recorder: Recorder, fields: dict[str, object], path: str) -> None:
    assert (f"tiers[1].{path}", "bad_field") in found(bench.apply(body([record("a"), record(**fields)])))
    assert recorder.applied == []
    assert "tiers" not in bench.node.intent.observed


def test_a_name_that_occurs_twice_is_a_fault(bench: Bench) -> None:
    assert found(bench.apply(body([record("a"), record("a")]))) == [("tiers[1].name", "duplicate")]


def test_tiers_of_the_settings_count_toward_the_most(bench: Bench) -> None:
    many = [record(str(number)) for number in range(MAX_TIERS)]
    assert found(bench.apply(body(many))) == [("tiers", "too_many")]
    assert bench.apply(body(many[1:])) == []


def test_a_dry_run_changes_nothing(bench: Bench, recorder: Recorder) -> None:
    assert bench.node.intent.faults(body([record()], dry_run=True), {}) == []
    assert found(bench.node.intent.faults(body([record(type="floppy")]), {})) == [("tiers[0].type", "bad_field")]
    assert recorder.applied == []


def test_a_node_that_cannot_open_tiers_takes_only_an_empty_list() -> None:
    bench = Bench(64 * PAGE)
    assert found(bench.apply(body([record()]))) == [("tiers", "unsupported")]
    assert bench.apply(body([])) == []
