"""One engine process of a replay: what it is told, what it says, and its loop.

Started with `spawn`, never forked: a client does not survive a fork. It says `Ready` when it has attached and knows its
keys, waits for the common start, reports `Progress` and ends with `Finished`. When the parent is gone, so is the pipe,
and the process ends.
"""

import os
import signal
import time
from collections import Counter
from multiprocessing.connection import Connection

import msgspec

from dataplane.client import AttachRefused, attach
from dataplane.protocol.spaces import Space
from dataplane.replay.chains import Chains
from dataplane.replay.content import VERSION
from dataplane.replay.engine import Engine
from dataplane.replay.tally import Tally

MODEL = "replay"
PROGRESS_S = 0.1


class Job(msgspec.Struct, frozen=True):
    """One request for this engine."""

    due_s: float
    """Seconds after the start before which it is not served; 0 for as soon as possible."""
    tenant: str
    ids: tuple[int, ...]


class Assignment(msgspec.Struct, frozen=True):
    """Everything that an engine process has to know."""

    number: int
    socket_path: str
    block_bytes: int
    verify: bool
    timeout_s: float
    jobs: list[Job]


class Ready(msgspec.Struct, frozen=True):
    connected: bool
    refusal: str = ""
    """Why a data plane that is there did not take the engine."""


class Start(msgspec.Struct, frozen=True):
    """The common start, as a `time.perf_counter()` of this machine."""

    at: float


class Progress(msgspec.Struct, frozen=True):
    """How many requests were served, in all."""

    requests: int


class Finished(msgspec.Struct, frozen=True):
    tally: Tally


def space_of(block_bytes: int) -> Space:
    """The replay's space for a block size: runs of another size or content never meet."""
    return Space(model=MODEL, layout=f"replay:{VERSION}:{block_bytes}", block_bytes=block_bytes)


def work(assignment: Assignment, pipe: Connection) -> None:
    """The process's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
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
        pipe.send(Ready(connected=False, refusal=str(refused)))
        return
    try:
        chains = Chains()
        requests = [(job, chains.keys(job.tenant, job.ids)) for job in assignment.jobs]
        del chains
        pipe.send(Ready(connected=client.connected))
        start: Start = pipe.recv()
        engine = Engine(client, assignment.block_bytes, verify=assignment.verify)
        _wait_until(start.at, pipe)
        told_at = start.at
        for number, (job, keys) in enumerate(requests, 1):
            if job.due_s:
                _wait_until(start.at + job.due_s, pipe)
            engine.serve(keys, job.tenant)
            if time.perf_counter() - told_at >= PROGRESS_S:
                pipe.send(Progress(number))
                told_at = time.perf_counter()
        engine.tally.reconnects = events["attached"] - 1
    except (BrokenPipeError, EOFError):
        return  # nobody is left to tell
    finally:
        client.close()
    pipe.send(Finished(engine.tally))


def _wait_until(moment: float, pipe: Connection) -> None:
    """Sleep until a `time.perf_counter()`. Raises EOFError as soon as the parent is gone: it says nothing otherwise."""
    while (wait_s := moment - time.perf_counter()) > 0:
        if pipe.poll(wait_s):
            pipe.recv()
