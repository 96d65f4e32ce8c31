"""`larder tiers`: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import larder as root
from tests.tiers.blocks import block, store
from tests.tiers.disk_backend import DiskBackend, slot_of


@pytest.fixture
def backend(tmp_path: Path) -> DiskBackend:
    backend = DiskBackend(tmp_path / "one", tmp_path / "two")
    tier = backend.open()
    store(tier, *(block(number, 5000, tenant="acme") for number in range(9)), block(9, 70_000, tenant=""))
    tier.close()
    return backend


def run(command: str, backend: DiskBackend, *options: str) -> Result:
    arguments = ["tiers", command, *map(str, backend.directories), *options]
    return CliRunner().invoke(root, arguments, catch_exceptions=False)


def _damage(backend: DiskBackend) -> str:
    """Change a byte of one block, and return the slot."""
    tier = backend.open()
    of = block(9, 70_000).block.name
    raw = bytearray(backend.stored(tier, of))
    raw[9000] ^= 1
    backend.overwrite(tier, of, bytes(raw))
    segment, _ = slot_of(tier, of)
    tier.close()
    return str(segment.path.parent)


def test_check_finds_nothing_in_whole_directories(backend: DiskBackend) -> None:
    done = run("check", backend)
    assert done.exit_code == 0
    assert "Faults" not in done.output
    assert run("check", backend, "-o", "name").output == ""


def test_check_fails_and_repair_frees(backend: DiskBackend) -> None:
    path = _damage(backend)
    failed = run("check", backend)
    assert failed.exit_code == 1
    assert "the data does not match its checksum" in failed.output
    found = json.loads(run("check", backend, "--json").output)
    assert found["ok"] is False
    assert sum(len(each["faults"]) for each in found["directories"]) == 1
    assert run("check", backend, "-o", "name").output.startswith(f"{path}/segment-")
    assert run("repair", backend).exit_code == 0
    assert run("check", backend).exit_code == 0
    assert json.loads(run("check", backend, "--json").output)["ok"] is True


def test_usage_sums_directories(backend: DiskBackend) -> None:
    done = json.loads(run("usage", backend, "-o", "json").output)
    assert done["tenants"] == [
        {"tenant": "acme", "blocks": 9, "stored_bytes": 9 * 12_288},
        {"tenant": "", "blocks": 1, "stored_bytes": 77_824},
    ]
    assert {each["slot_bytes"] for each in done["sizes"]} == {12_288, 77_824}
    assert len(done["directories"]) == 2
    shown = run("usage", backend).output
    assert "Tenants (2)" in shown
    assert "Sizes (2)" in shown


@pytest.mark.parametrize("command", ["check", "repair", "usage"])
def test_a_directory_that_a_node_uses_is_refused(backend: DiskBackend, command: str) -> None:
    tier = backend.open()
    refused = run(command, backend)
    tier.close()
    assert refused.exit_code == 1
    assert "in use by node node-1" in refused.output


@pytest.mark.parametrize("command", ["check", "repair", "usage"])
def test_a_missing_directory_of_a_tier_is_not_found(tmp_path: Path, command: str) -> None:
    refused = run(command, DiskBackend(tmp_path))
    assert refused.exit_code == 4
    assert f"{tmp_path}: expected a directory of a tier" in refused.output
