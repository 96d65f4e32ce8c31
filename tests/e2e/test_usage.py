"""What two tenants do with a real data plane is what their bill says."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.larder import BLOCK_BYTES, MODEL, Larder, cached, keys, running, store, until

CHUNK = 256


@pytest.fixture
def larder(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Larder]:
    (socket_dir / "larder.toml").write_text("[app]\nusage_poll_interval_s = 0.2\nusage_write_interval_s = 0.2\n")
    monkeypatch.chdir(socket_dir)
    with running(socket_dir) as one:
        yield one


def by_tenant(larder: Larder) -> dict[str, Any]:
    return {item["group"]: item for item in larder.get("usage?step=1d")["items"]}


def test_tokens_served_and_bytes_held_are_reported_for_each_tenant_in_json_and_csv(larder: Larder) -> None:
    rate = {"model": MODEL, "prefill_tokens_per_s": 1000}
    assert larder.api.put("/api/v1/rates/measured", json=rate).status_code == 201
    with larder.engine() as engine:
        for tenant, blocks in (("red", 8), ("blue", 2)):
            chain = keys(tenant, blocks)
            assert engine.lookup(chain, tenant=tenant) == 0
            assert store(engine, chain, tenant) == blocks
            assert engine.lookup(chain, tenant=tenant) == blocks
            assert cached(engine, chain) == blocks
        found = until(
            lambda: (
                (now := by_tenant(larder))
                and now.keys() >= {"red", "blue"}
                and now["blue"]["served_tokens"]
                and now["blue"]["byte_hours"] > 0
                and now
            ),
            "both are in the ledger",
        )
        red, blue = found["red"], found["blue"]
        assert (red["requested_tokens"], red["served_tokens"]) == (16 * CHUNK, 8 * CHUNK)
        assert (blue["requested_tokens"], blue["served_tokens"]) == (4 * CHUNK, 2 * CHUNK)
        assert (red["stored_bytes"], blue["stored_bytes"]) == (8 * BLOCK_BYTES, 2 * BLOCK_BYTES)
        assert red["saved_prefill_s"] == pytest.approx(8 * CHUNK / 1000)
        assert red["byte_hours"] > blue["byte_hours"] > 0
        answer = larder.api.get("/api/v1/usage?step=1d", headers={"Accept": "text/csv"})
        assert answer.status_code == 200, answer.text
        rows = {row["tenant"]: row for row in csv.DictReader(io.StringIO(answer.text))}
        assert rows["red"]["served_tokens"] == str(8 * CHUNK)
        assert float(rows["red"]["byte_hours"]) >= red["byte_hours"] - 1e-6
    completed = larder.cli("usage", "--step", "1d")
    assert completed.returncode == 0, completed.stderr
    assert [line.split()[1] for line in completed.stdout.splitlines() if line.startswith("2")] == ["blue", "red"]
    assert larder.cli("usage", "--csv").stdout.startswith("start,tenant,byte_hours")
    assert "measured" in larder.cli("rates", "list").stdout


def test_a_use_right_before_a_stop_is_written(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(socket_dir)
    with running(socket_dir) as first:
        with first.engine() as engine:
            chain = keys("late", 4)
            store(engine, chain, "late")
            assert cached(engine, chain) == 4
        until(lambda: first.tenant("late")["blocks"] == 4, "the node has it")
    with running(socket_dir) as second:
        assert by_tenant(second)["late"]["stored_blocks"] == 4
