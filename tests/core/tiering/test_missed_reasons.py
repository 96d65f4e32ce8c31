"""Why a request missed a block that only tiers hold, or that neither memory nor a tier holds any more."""

from __future__ import annotations

from dataplane.protocol.engine import ReportRequest
from tests.core.tiering.tier_bench import TierBench, tier, tier_bench
from tests.dataplane import factories as make

CHAIN = make.keys(3)


def reason(run: TierBench) -> tuple[str, str]:
    message = ReportRequest(
        id=1, request="r", tenant="", prompt_tokens=1000, engine_tokens=0, loaded_tokens={}, missed_tokens=768,
        key=CHAIN[0],
    )  # fmt: skip
    answer = run.bench.node.report_request(run.engine.client, message, run.now)
    return answer.reason, answer.cause


def test_a_block_that_only_a_tier_holds_is_late_in_service_and_away_out_of_service() -> None:
    run = tier_bench(16, tier())
    run.store(CHAIN)
    run.settle()
    run.evict_all()
    assert reason(run) == ("tier_late", "")
    (disk,) = run.tiering.tiers
    disk.serves = False
    assert reason(run) == ("tier_away", "")


def test_a_block_that_a_tier_evicted_after_memory_names_the_tier() -> None:
    run = tier_bench(64, tier(budget_blocks=3))
    run.store(CHAIN)
    run.settle()
    run.evict_all()
    run.store(make.keys(6, "other"))
    run.settle()
    run.evict_all()
    assert CHAIN[0] not in run.keys_in(0)
    assert reason(run) == ("evicted", "tier")
