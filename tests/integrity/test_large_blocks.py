"""Looking at a reported block takes a bounded time, and no memory."""

from __future__ import annotations

import os

import numpy as np
import pytest

from dataplane.core.operator.integrity import MAX_BYTES_PER_BLOCK
from dataplane.memory.memory import READ_BYTES, NodeMemory
from dataplane.protocol.checksums import checksum
from tests.dataplane import factories as make
from tests.integrity.test_reports import Bench, damage, report, seen, store


def test_a_block_too_large_to_look_at_is_refused_and_others_of_the_report_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataplane.core.operator.integrity.MAX_BYTES_PER_BLOCK", make.MIB)
    assert MAX_BYTES_PER_BLOCK > make.MIB
    large = 2 * make.MIB
    bench = Bench(8 * make.MIB, segment_bytes=large)
    engine = bench.attach(make.space(), make.space("large", block_bytes=large))
    one, other = make.keys(2)
    store(bench, engine, [one], large, space=1)
    store(bench, engine, [other], make.MIB)
    damage(bench, engine, other)
    descriptors, controls = seen(engine, [one], 1)
    more = seen(engine, [other])
    assert report(engine, descriptors + more[0], controls + more[1]) == 1
    assert bench.refused() == {"rate_limited": 1}


def test_the_checksum_is_that_of_the_bytes_and_takes_no_page() -> None:
    memory = NodeMemory(1024)
    try:
        memory.create_segment(1, 64 * READ_BYTES)
        file = memory.segments[1]
        content = np.random.default_rng(7).bytes(3 * READ_BYTES + 17)
        os.pwrite(file.fd, content, READ_BYTES)
        taken = os.fstat(file.fd).st_blocks
        assert memory.digest(1, READ_BYTES, len(content)) == checksum(content)
        assert memory.digest(1, 8 * READ_BYTES, 40 * READ_BYTES) == checksum(bytes(40 * READ_BYTES))
        assert os.fstat(file.fd).st_blocks == taken
        with pytest.raises(MemoryError):
            memory.digest(1, 60 * READ_BYTES, 5 * READ_BYTES)
    finally:
        memory.close()
