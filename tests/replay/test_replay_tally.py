"""Adding up what several engines counted."""

from dataplane.replay.tally import ReplayTally, rate_gbps, total


def test_counts_add_up_and_reasons_are_counted_separately():
    one = ReplayTally(requests=2, blocks_hit=3, blocks_refused={"pool_full": 1}, lookup_ns=[1_000])
    other = ReplayTally(requests=1, blocks_refused={"pool_full": 2, "unavailable": 5}, lookup_ns=[3_000], reconnects=1)
    both = total([one, other])
    assert both == ReplayTally(
        requests=3,
        blocks_hit=3,
        blocks_refused={"pool_full": 3, "unavailable": 5},
        lookup_ns=[1_000, 3_000],
        reconnects=1,
    )
    assert one.lookup_ns == [1_000]
    assert both.lookup_us(50) == 2.0


def test_nothing_was_refused_when_no_block_was():
    tally = ReplayTally()
    tally.refuse("pool_full", 0)
    assert tally.blocks_refused == {}


def test_a_rate_is_over_the_mean_time_that_an_engine_was_busy():
    assert rate_gbps(8_000, 2_000, engines=1) == 4.0
    assert rate_gbps(8_000, 2_000, engines=2) == 8.0
    assert rate_gbps(0, 0, engines=1) == 0.0
    assert ReplayTally().lookup_us(99) == 0.0
