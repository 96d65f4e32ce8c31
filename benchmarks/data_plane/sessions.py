"""What a node does for 10,000 sessions: how long a release, a retention and a prefetch of one take from the request on
the control socket to the answer, and the memory of a session.

The baseline of the actions is a listing of one session, which changes nothing.
"""

import time
from itertools import cycle
from pathlib import Path
from random import Random

from benchmarks.harness.memory import MiB
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import FULL, Setting, attached, store
from benchmarks.harness.timing import Latency
from dataplane.client import Client
from dataplane.protocol.control.sessions import ActOnSession, ListSessions, SessionActed, SessionAction, SessionsListed
from dataplane.protocol.layout import U64
from dataplane.replay.control import ControlLink
from dataplane.replay.plane import own

SESSIONS = 10_000
TARGET_MS = 50.0
TARGET_BYTES = 200.0
BLOCK_BYTES = 4096
_BLOCKS = 8
"""Blocks of a session, behind those of the system prompt that all share."""
_POOL_BYTES = 160 * MiB
"""Half of what all sessions take: the older ones are in the tier alone."""
_TIER_BYTES = 1024 * MiB
_WAIT_S = 120.0


def run(setting: Setting) -> list[Result]:
    """The 99th percentile of each action, in milliseconds, and the bytes of a session."""
    count = SESSIONS if setting.effort == FULL else SESSIONS // 10
    samples = 1000 if setting.effort == FULL else 50
    results: list[Result] = []
    with (
        own(_POOL_BYTES * count // SESSIONS, disk_tier_bytes=_TIER_BYTES) as plane,
        attached(plane.engine_socket, BLOCK_BYTES, checksums=False, verify="off") as client,
    ):
        assert plane.control_url is not None
        assert plane.pid is not None
        system = setting.new_keys(4)
        store(client, system, BLOCK_BYTES)
        grown_bytes: list[int] = []
        for names in ([""] * count, [""] * count, [_name(number) for number in range(count)]):
            before = _private_bytes(plane.pid)
            for name in names:
                client.reserve(system, BLOCK_BYTES, session=name).abort()
            grown_bytes.append(_private_bytes(plane.pid) - before)
        # The first requests fill caches, and each one is in the access trace.
        session_bytes = (grown_bytes[2] - grown_bytes[1]) / count
        results.append(at_most("session_memory", session_bytes, "bytes", TARGET_BYTES if count == SESSIONS else None))
        for number in range(count):
            _store(setting, client, system, _name(number))
        with ControlLink(plane.control_url) as link:
            # The first sessions are in the tier alone; the last ones are in memory.
            firsts: dict[SessionAction, int] = {"release": count // 2, "retain": count // 2, "prefetch": 0}
            for action, first in firsts.items():
                latency = _latency(link, action, range(first, first + count // 4), setting.effort.runs, samples)
                target = TARGET_MS if count == SESSIONS else None
                p99, baseline = latency.us(99) / 1e3, latency.baseline_us(99) / 1e3
                results.append(at_most(f"session_{action}_p99", p99, "ms", target, baseline))
    return results


def _name(number: int) -> str:
    return f"conversation-{number:023}"


def _store(setting: Setting, client: Client, system: U64, session: str) -> None:
    parent = system[-1].tobytes()
    with client.reserve(setting.new_keys(_BLOCKS), BLOCK_BYTES, parent=parent, session=session) as reservation:
        reservation.commit()


def _latency(link: ControlLink, action: SessionAction, numbers: range, runs: int, samples: int) -> Latency:
    names = [_name(number) for number in numbers]
    Random(9).shuffle(names)
    turn = cycle(names)
    seconds = 0.0 if action == "release" else 60.0

    def act() -> None:
        if not link.ask(ActOnSession("n", action, "", next(turn), seconds), SessionActed, _WAIT_S).found:
            raise RuntimeError("the node does not know a session")

    def look() -> None:
        link.ask(ListSessions("n", "", next(turn)), SessionsListed, _WAIT_S)

    _wait_until_idle(link)
    return Latency(act, look, runs=runs, samples=samples)


def _wait_until_idle(link: ControlLink) -> None:
    """Wait until the tier has stored what was to be copied to it, and loads nothing."""
    end = time.monotonic() + _WAIT_S
    while any(
        tier.waiting_blocks or tier.spilling_bytes or tier.loading_bytes for tier in link.describe(_WAIT_S).stats.tiers
    ):
        if time.monotonic() > end:
            raise RuntimeError(f"the tier was not idle in {_WAIT_S:g} s")
        time.sleep(0.01)


def _private_bytes(pid: int) -> int:
    """Bytes of a process that it shares with no other."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
