"""The attachment of the mover names the process that made it, for a data plane that adopts it after a kill."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dataplane.io import peers
from dataplane.io.peers import open_process
from dataplane.protocol.tiers import TierSpec
from dataplane.tiering.service import TierService
from tests.dataplane.tiering.mover_bench import LoopBench


def test_a_later_process_with_the_same_pid_is_not_taken_for_the_mover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, the next data plane often has the pid of the one that was killed."""
    bench = LoopBench(4 << 20)
    disk = TierSpec(name="disk", type="disk", budget_bytes=1 << 20, parameters={"path": str(tmp_path / "disk")})
    service = TierService(bench.loop, bench.node, bench.memory, time.time, tmp_path, "test", [disk], listed_blocks=4096)
    assert service.tiering is not None
    mover = bench.node.engines[service.tiering.loads.client]
    assert mover.pid == os.getpid()
    pidfd = open_process(mover.pid, mover.started)
    assert pidfd is not None, "this process is the mover's"
    os.close(pidfd)
    started = peers.started_at(os.getpid())
    monkeypatch.setattr(peers, "start_time", lambda pid: started + 1)
    assert open_process(mover.pid, mover.started) is None
    service.close(time.time())
    bench.close()
