"""Adding up what several engines counted."""

from io import StringIO

from rich.console import Console

from dataplane.replay.accounting import Accounting
from dataplane.replay.report import as_table
from dataplane.replay.run import ReplayResult
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


def test_a_rate_is_over_the_time_of_the_engine_that_was_busy_longest():
    assert rate_gbps(8_000, [2_000]) == 4.0
    assert rate_gbps(8_000, [2_000, 2_000]) == 4.0
    assert rate_gbps(8_000, [2_000, 10, 0, 0]) == 4.0, "engines that stored little or nothing change nothing"
    assert rate_gbps(0, [0]) == rate_gbps(0, []) == 0.0
    assert ReplayTally().lookup_us(99) == 0.0


def test_the_table_shows_what_the_data_plane_found_wrong():
    findings = ["block 7: on no queue of [a, b]", "tenant acme: 50 bytes too many"]
    accounting = Accounting(100, 50, 50, 0, 0, pool_bytes_equal=False, faults=findings)
    outcome = ReplayResult(ReplayTally(), 0.0, 0.0, 1.0, 1, 4096, 1, accounting)
    printed = StringIO()
    Console(file=printed, width=200).print(as_table(outcome))
    for finding in findings:
        assert finding in printed.getvalue()
