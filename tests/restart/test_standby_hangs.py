"""A process that waits to take over and hangs delays nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from dataplane.client import attach
from tests.dataplane import factories as make
from tests.dataplane.plane import wait_for
from tests.restart.support.harness import Supervised, supervised


def standby_pid(plane: Supervised) -> int:
    return int(plane.logged("dataplane.standby_ready")[-1]["pid"])


def test_a_standby_that_does_not_answer_is_given_up_and_nothing_is_lost(tmp_path: Path) -> None:
    chain = make.keys(8)
    with supervised(tmp_path) as plane:
        with attach(plane.socket, [make.space()], timeout_s=30) as client:
            with client.reserve(chain, 4096) as reservation:
                reservation.commit()
            assert client.lookup(chain) == len(chain)
            wait_for(plane.standby_waits, "a standby waits")
            hung, before = standby_pid(plane), plane.plane_pid
            os.kill(hung, signal.SIGSTOP)
            plane.kill_plane()
            wait_for(lambda: plane.plane_pid != before, "another process serves")
            assert plane.plane_pid != hung
            wait_for(lambda: plane.logged("dataplane.standby_timed_out"), "the log says it")
            assert [each["pid"] for each in plane.logged("dataplane.standby_timed_out")] == [hung]
            with plane.manager() as manager:
                assert manager.describe().pool.blocks == len(chain)
            wait_for(lambda: not Path(f"/proc/{hung}").exists(), "it is killed")
        wait_for(plane.standby_waits, "the next standby waits")
