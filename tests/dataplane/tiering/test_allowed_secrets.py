"""Secrets that records of tiers may name: those that the node's settings allow."""

import re
import tomllib
from typing import Any

import pytest

from dataplane.base.allowed_secrets import faults, is_entry
from dataplane.protocol.control.records import encode_tiers
from dataplane.protocol.control.snapshots import Nack
from dataplane.protocol.tiers import TierSpec
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane

ALLOWED = ["env:TIER_*", "env:REDIS_PASSWORD", "file:/run/secrets/*", "file:/etc/larder/key"]


@pytest.mark.parametrize(
    "reference",
    ["env:TIER_KEY", "env:REDIS_PASSWORD", "file:/run/secrets/a", "file:/run/secrets/a/b", "file:/etc/larder/key"],
)
def test_a_reference_that_an_entry_covers_is_allowed(reference: str) -> None:
    assert not list(faults({"password": reference, "servers": ["a:1"]}, ALLOWED))


@pytest.mark.parametrize(
    "reference",
    [
        "env:HOME",
        "env:tier_key",
        "env:REDIS_PASSWORD_2",
        "file:/etc/shadow",
        "file:/etc/larder/key2",
        "file:/run/secrets",
        "file:/run/secrets/../shadow",
        "file:/run/secrets/a/../../../etc/shadow",
        "file:/run/secrets//a",
        "file://run/secrets/a",
        "file:/proc/self/environ",
    ],
)
def test_other_references_are_refused_wherever_they_are(reference: str) -> None:
    shapes: dict[str, dict[str, Any]] = {
        "password": {"password": reference},
        "credentials.key": {"credentials": {"key": reference}},
        "keys[1]": {"keys": ["env:TIER_KEY", reference]},
    }
    for path, parameters in shapes.items():
        assert [field for field, _ in faults(parameters, ALLOWED)] == [f"parameters.{path}"]


@pytest.mark.parametrize("reference", ["env:AWS_ACCESS_KEY_ID", "file:/etc/larder/other"])
@pytest.mark.parametrize("allowed", [ALLOWED, []])
def test_the_refusal_contains_the_setting_that_allows_the_reference(reference: str, allowed: list[str]) -> None:
    ((_, message),) = faults({"password": reference}, allowed)
    setting = re.search(r"tier_secrets = \[.*?\]", message)
    assert setting is not None, message
    listed = tomllib.loads(setting[0])["tier_secrets"]
    assert listed == [*allowed, reference]
    assert all(map(is_entry, listed))
    assert not list(faults({"password": reference}, listed))


@pytest.mark.parametrize("reference", ["file:/run/secrets/../shadow", "env:A B", f"env:{'A' * 1000}"])
def test_a_refused_reference_names_the_allowed_entries(reference: str) -> None:
    ((_, message),) = faults({"password": reference}, ALLOWED)
    assert message.endswith(", ".join(ALLOWED))


@pytest.mark.parametrize("entry", ["env:", "file:/", "file:relative", "password", "env:A B", "env:*A", ""])
def test_entries_that_are_not_references_are_refused(entry: str) -> None:
    assert not is_entry(entry)


@pytest.mark.parametrize("entry", [*ALLOWED, "env:*", "file:/*"])
def test_references_are_valid_entries(entry: str) -> None:
    assert is_entry(entry)


def test_a_node_refuses_a_record_that_names_another_file(plane: Plane) -> None:
    spec = TierSpec(
        name="fast",
        type="redis",
        budget_bytes=1 << 20,
        parameters={"servers": ["127.0.0.1:1"], "password": "file:/etc/shadow"},
    )
    with plane.manager() as manager:
        answer = manager.push(make.snapshot("tiers", encode_tiers([spec]), 1))
    assert isinstance(answer, Nack)
    assert [fault.path for fault in answer.errors] == ["tiers[0].parameters.password"]
    assert "dataplane.tier_secrets" in answer.errors[0].message
