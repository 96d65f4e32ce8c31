"""Blocks that a tier could not delete are deleted later, and keep neither the tier nor its other blocks waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import BlockName, Outcome
from dataplane.tiering import mover
from tests.dataplane import factories as make
from tests.dataplane.tiering.faulty_tier import FaultyTier
from tests.dataplane.tiering.mover_bench import MoverBench


class Deletions:
    """Calls of `delete` of a tier that cannot delete the blocks of some keys."""

    def __init__(self, tier: FaultyTier, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: set[bytes] = set()
        self.calls = 0
        self._delete = tier.delete
        monkeypatch.setattr(tier, "delete", self._call)

    def _call(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        self.calls += 1
        return [Outcome.FAILED if name.key in self.keys else self._delete([name], deadline)[0] for name in names]


@pytest.fixture
def run() -> Iterator[MoverBench]:
    bench = MoverBench()
    yield bench
    bench.close()


def test_a_block_that_cannot_be_deleted_keeps_its_tombstone_and_the_tier_in_service(
    run: MoverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    deletions = Deletions(run.tier, monkeypatch)
    monkeypatch.setattr(mover, "DELETE_AGAIN_S", 0.0)
    chain = make.keys(4, "chain")
    run.store(chain, "acme")
    run.until(lambda: run.listed(chain) == 4)
    deletions.keys = {chain[0]}
    run.node.operator.invalidate(Scope(tenant="acme"), 1e12)
    run.until(lambda: deletions.calls > 10)
    assert run.state.serves
    assert {name.key for name in run.tier.stored} == {chain[0]}
    assert len(run.tombstones) == 1
    deletions.keys = set()
    run.until(lambda: not run.tombstones)
    assert not run.tier.stored


def test_a_call_that_deletes_nothing_is_followed_by_a_pause(run: MoverBench, monkeypatch: pytest.MonkeyPatch) -> None:
    deletions = Deletions(run.tier, monkeypatch)
    monkeypatch.setattr(mover, "DELETE_AGAIN_S", 3600.0)
    chain = make.keys(1, "chain")
    run.store(chain, "acme")
    run.until(lambda: run.listed(chain) == 1)
    deletions.keys = set(chain)
    run.node.operator.invalidate(Scope(tenant="acme"), 1e12)
    run.until(lambda: deletions.calls == 1 and not run.run.deleting)
    for _ in range(20):
        run.mover.step()
    assert (deletions.calls, run.run.deleting, len(run.state.deletions)) == (1, False, 1)
