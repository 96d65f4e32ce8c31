"""One process has a bounded number of spaces, however often it attaches."""

from __future__ import annotations

import pytest

from dataplane.core.engines import lifecycle
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.spaces import Space
from tests.core.tenancy import bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import refused


def spaces(*numbers: int) -> list[Space]:
    return [Space(model=make.MODEL, revision=str(number)) for number in numbers]


def test_a_process_has_so_many_spaces_in_all_its_attachments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MAX_SPACES_PER_PROCESS", 8)
    bench, _ = bench_of(64)
    first = bench.attach(*spaces(*range(6)), pid=1)
    for _ in range(3):
        bench.attach(*spaces(*range(6)), pid=1)  # the same ones again
    with refused(Code.BAD_SPACE, "spaces"):
        bench.attach(*spaces(5, 6, 7, 8), pid=1)
    assert len(bench.node.pool.spaces.by_number) == 7, "nothing of it is kept"
    bench.attach(*spaces(5, 6, 7), pid=1)
    bench.attach(*spaces(8, 9, 10), pid=2)
    first.detach_cleanly()
    with pytest.raises(ProtocolError):
        bench.attach(*spaces(11), pid=1)
