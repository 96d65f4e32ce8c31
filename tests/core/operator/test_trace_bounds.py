"""The access trace does not block, also after an hour of silence or when asked for the last second."""

from __future__ import annotations

import msgspec

from dataplane.core.engines.accesses import MAX_RECORDS, AccessTrace
from dataplane.core.spaces import Spaces
from dataplane.protocol.layout import pack_keys
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.work import lines_run


def full() -> tuple[AccessTrace, float]:
    bench, _ = bench_of(64)
    trace = AccessTrace(bench.now, 2 * MAX_RECORDS)
    words = pack_keys(make.keys(1))[:, 0]
    tenant = bench.node.pool.tenants.get("a")
    for _ in range(50_000):
        trace.stored(1, tenant, 1, PAGE, words, 0, bench.now)
    later = bench.now + 4000
    assert lines_run(lambda: trace.stored(1, tenant, 1, PAGE, words, 0, later)) < 10_000
    return trace, later


def test_old_requests_are_not_shown_although_they_are_dropped_bit_by_bit() -> None:
    trace, later = full()
    parts = []
    assert lines_run(lambda: parts.append(trace.part(0.0, 0, 1 << 20, Spaces()))) < 10_000
    ((lines, following),) = parts
    assert following == 0
    assert len(lines.splitlines()) == 1
    assert msgspec.json.decode(lines)["timestamp"] == 4_000_000
    assert trace.part(later + 1, 0, 1 << 20, Spaces()) == (b"", 0)


def test_a_number_beyond_the_last_request_ends_the_trace() -> None:
    trace, _ = full()
    assert trace.part(0.0, 2**62, 1 << 20, Spaces()) == (b"", 0)


def test_records_that_are_continued_are_not_walked_by_later_pieces() -> None:
    bench, _ = bench_of(64)
    trace = AccessTrace(bench.now, 1 << 16)
    prefix = make.keys(1, "prefix")[0]
    words, piece = pack_keys([prefix])[:, 0], pack_keys(make.keys(1, "piece"))[:, 0]
    tenant = bench.node.pool.tenants.get("a")
    for _ in range(2):  # requests that wait for their pieces at the same time
        for _ in range(3000):
            trace.served(1, tenant, 1, PAGE, words, bench.now)
        for _ in range(3000):
            number = trace.continued(1, 1, prefix, bench.now, acquired=False)
            assert number >= 0
            trace.stored(1, tenant, 1, PAGE, piece, 0, bench.now, number)
    for _ in range(3000):  # and one after the other
        trace.served(1, tenant, 1, PAGE, words, bench.now)
        number = trace.continued(1, 1, prefix, bench.now, acquired=False)
        trace.stored(1, tenant, 1, PAGE, piece, 0, bench.now, number)
    assert lines_run(lambda: trace.continued(1, 1, prefix, bench.now, acquired=False)) < 100
