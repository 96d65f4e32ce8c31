"""Snapshots of tiers are validated whole, with the checks of the tier types, and handed over whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dataplane.protocol.control.snapshots import Fault, Snapshot
from dataplane.protocol.tier_directory import MAX_TIERS
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

PAGE = 4096


def record(name: object = "t", **fields: object) -> dict[str, Any]:
    parameters = {"directories": ["/mnt/x"], "segment_bytes": 1 << 20}
    return {"name": name, "type": "disk", "budget_bytes": 1 << 30, "parameters": parameters, **fields}


def body(records: list[dict[str, Any]], generation: int = 1, *, dry_run: bool = False) -> Snapshot:
    snapshot = make.snapshot("tiers", msgspec.msgpack.encode(records), generation)
    return msgspec.structs.replace(snapshot, dry_run=dry_run)


def found(faults: list[Fault]) -> list[tuple[str, str]]:
    return [(fault.path, fault.code) for fault in faults]


@pytest.fixture
def bench() -> Bench:
    return Bench(64 * PAGE)


def test_valid_tiers_are_handed_over_and_observed(bench: Bench) -> None:
    assert bench.apply(body([record("a"), record("b", order=1, spill="off")])) == []
    assert [[spec.name for spec in specs] for specs in bench.tiers.applied] == [["a", "b"]]
    assert bench.tiers.applied[0][1].order == 1
    assert bench.node.intent.observed["tiers"].generation == 1


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "disk"}, "name"),
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
def test_a_fault_names_its_field(bench: Bench, fields: dict[str, object], path: str) -> None:
    assert (f"tiers[1].{path}", "bad_field") in found(bench.apply(body([record("a"), record(**fields)])))
    assert bench.tiers.applied == []
    assert "tiers" not in bench.node.intent.observed


def test_a_name_that_occurs_twice_is_a_fault(bench: Bench) -> None:
    assert found(bench.apply(body([record("a"), record("a")]))) == [("tiers[1].name", "duplicate")]


def test_tiers_of_the_settings_count_toward_the_most(bench: Bench) -> None:
    many = [record(str(number)) for number in range(MAX_TIERS)]
    assert found(bench.apply(body(many))) == [("tiers", "too_many")]
    assert bench.apply(body(many[1:])) == []


def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    assert bench.node.intent.faults(body([record()], dry_run=True), {}, bench.tiers) == []
    faults = bench.node.intent.faults(body([record(type="floppy")]), {}, bench.tiers)
    assert found(faults) == [("tiers[0].type", "bad_field")]
    assert bench.tiers.applied == []
