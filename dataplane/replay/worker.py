"""One engine process of a replay: its messages and its loop.

It sends `WorkerReady` when it has attached and computed its keys, waits for the common start, sends `WorkerProgress`,
and ends with `Finished`. When the parent ends, the pipe closes, and the process ends too.
"""

import os
import signal
import time
from collections import Counter
from multiprocessing.connection import Connection

import msgspec

from dataplane.client import AttachRefused, attach
from dataplane.protocol.spaces import Space
from dataplane.replay.chains import DerivedChains
from dataplane.replay.content import VERSION
from dataplane.replay.engine import ReplayEngine
from dataplane.replay.tally import ReplayTally

MODEL = "replay"
PROGRESS_S = 0.1
MAX_POLL_S = 3600.0
"""Longest single wait; `poll` refuses 25 days."""


class WorkerJob(msgspec.Struct, frozen=True):
    """One request for this engine."""

    due_s: float
    """Earliest time, in seconds after the start; 0 for as soon as possible."""
    tenant: str
    ids: tuple[int, ...]


class Assignment(msgspec.Struct, frozen=True):
    """All information that an engine process needs."""

    number: int
    socket_path: str
    block_bytes: int
    verify: bool
    timeout_s: float
    tier_wait_s: float
    jobs: list[WorkerJob]


class WorkerReady(msgspec.Struct, frozen=True):
    connected: bool
    refusal: str = ""
    """Reason why a running data plane refused the engine."""


class Start(msgspec.Struct, frozen=True):
    """The common start, as a value of `time.perf_counter()` on this machine."""

    at: float


class WorkerProgress(msgspec.Struct, frozen=True):
    """Total number of requests served so far."""

    requests: int


class Finished(msgspec.Struct, frozen=True):
    tally: ReplayTally


def space_of(block_bytes: int) -> Space:
    """Return the replay's space for a block size. Runs with another block size or content use other spaces."""
    return Space(model=MODEL, layout=f"replay:{VERSION}:{block_bytes}", block_bytes=block_bytes)


def work(assignment: Assignment, pipe: Connection) -> None:
    """Main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    events: Counter[str] = Counter()
    try:
        client = attach(
            assignment.socket_path,
            [space_of(assignment.block_bytes)],
            group=f"replay-{os.getppid()}-{assignment.number}",
            engine="larder replay",
            timeout_s=assignment.timeout_s,
            on_event=lambda event: events.update([event.name]),
        )
    except AttachRefused as refused:
        pipe.send(WorkerReady(connected=False, refusal=str(refused)))
        return
    try:
        chains = DerivedChains()
        requests = [(job, chains.keys(job.tenant, job.ids)) for job in assignment.jobs]
        del chains
        pipe.send(WorkerReady(connected=client.connected))
        start: Start = pipe.recv()
        engine = ReplayEngine(
            client, assignment.block_bytes, verify=assignment.verify, tier_wait_s=assignment.tier_wait_s
        )
        _wait_until(start.at, pipe)
        started_at = start.at
        for number, (job, keys) in enumerate(requests, 1):
            if job.due_s:
                _wait_until(start.at + job.due_s, pipe)
            engine.serve(keys, job.tenant)
            if time.perf_counter() - started_at >= PROGRESS_S:
                pipe.send(WorkerProgress(number))
                started_at = time.perf_counter()
        engine.tally.reconnects = events["attached"] - 1
    except (BrokenPipeError, EOFError):
        return  # the parent has ended
    finally:
        client.close()
    pipe.send(Finished(engine.tally))


def _wait_until(moment: float, pipe: Connection) -> None:
    """Sleep until a `time.perf_counter()` value. Raise EOFError as soon as the parent ends.

    The parent sends nothing at this stage, so the pipe becomes readable only when the parent ends.
    """
    while (wait_s := moment - time.perf_counter()) > 0:
        if pipe.poll(min(wait_s, MAX_POLL_S)):
            pipe.recv()
