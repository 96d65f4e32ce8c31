"""Types of tiers: entry points, and parameters whose errors name the field."""

import sys
from pathlib import Path

import pytest

from dataplane.tiers.disk.parameters import DiskParameters
from dataplane.tiers.registry import ParameterError, TierContext, open_tier, parse_parameters, tier_type, tier_types
from dataplane.tiers.tier import TierError


def test_the_disk_type_is_installed() -> None:
    assert "disk" in tier_types()
    assert tier_type("disk").parameters is DiskParameters


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match=r"^type: expected one of .*disk.*, got 'tape'$"):
        tier_type("tape")


def test_parameters_have_defaults() -> None:
    assert parse_parameters("disk", {"directories": ["/a"]}) == DiskParameters(["/a"], 1 << 30, "auto", 4)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "directories: expected a list, got nothing"),
        ({"directories": []}, "directories: expected at least 1 item"),
        ({"directories": ["relative"]}, "directories[0]: expected text such as '/mnt/nvme0/larder'"),
        ({"directories": ["/a"], "segment_bytes": "1GiB"}, "segment_bytes: expected bytes as a whole number, got text"),
        ({"directories": ["/a"], "segment_bytes": 1}, "segment_bytes: expected a whole number, at least 16384"),
        (
            {"directories": ["/a"], "segment_bytes": 20_000},
            "segment_bytes: expected a whole number, a multiple of 4096",
        ),
        ({"directories": ["/a"], "direct_io": "maybe"}, "direct_io: expected one of auto, on, off, got 'maybe'"),
        ({"directories": ["/a"], "threads": 0}, "threads: expected a whole number, at least 1"),
        (
            {"directories": ["/a"], "depth": 1},
            "depth: unknown; expected one of directories, segment_bytes, direct_io, threads",
        ),
        ([], "expected a map, got a list"),
    ],
)
def test_errors_name_the_field(parameters: object, message: str) -> None:
    with pytest.raises(ParameterError) as refused:
        parse_parameters("disk", parameters)
    assert str(refused.value) == message
    assert refused.value.field == (message.partition(": ")[0] if ": " in message else "")


def test_the_context_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="cluster: expected 16 bytes, got 3"):
        TierContext(b"abc", "node-1", 1 << 30)
    with pytest.raises(ParameterError, match="budget_bytes: expected 0 or more, got -1"):
        TierContext(bytes(16), "node-1", -1)
    with pytest.raises(ParameterError, match="budget_bytes: expected at least one segment"):
        open_tier("disk", {"directories": [str(tmp_path / "one")]}, TierContext(bytes(16), "node-1", 0))


def test_a_tier_without_its_wheel_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dataplane.tiers.mooncake.tier", raising=False)
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(TierError, match="pip install mooncake-transfer-engine-non-cuda"):
        open_tier("mooncake", {"master": "127.0.0.1:1"}, TierContext(b"c" * 16, "node-1", 0))
    with pytest.raises(ParameterError, match=r"^master: expected"):
        parse_parameters("mooncake", {"master": "nowhere"})
