"""Processes are killed at every store into the memory, and at random: no other one is blocked, no byte is wrong, and
all memory comes back."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests import forked
from tests.ipc.store.cuts import OPERATIONS
from tests.ipc.store.hammer import ROLES
from tests.sizes import size

KILLS = size(full=200, usual=12)


def run(module: str, *arguments: str) -> Any:
    timeout = 280 if module == "cuts" else 1700
    done = forked.run(f"tests.ipc.store.{module}", *arguments, env=dict(os.environ), timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_kill_at_any_store_leaves_a_whole_store(operation: str) -> None:
    assert run("cuts", operation)["kills"] > 10


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("victim", ["reader", "writer", "both"])
def test_survivors_of_200_kills_continue(victim: str) -> None:
    found = run("hammer", f"{KILLS}", victim)
    assert found["kills"] == KILLS
    killed = (2 if victim == "both" else 1) * KILLS  # and in the end all workers, some of which may not be attached yet
    assert killed <= found["stats"]["dead_processes"] <= killed + len(ROLES)
