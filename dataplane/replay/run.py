"""A whole replay: the data plane, the engine processes, the progress, and the totals."""

import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import msgspec

from dataplane.protocol.codes import ProtocolError
from dataplane.replay import accounting
from dataplane.replay.accounting import Accounting
from dataplane.replay.control import ControlError, ControlLink
from dataplane.replay.plane import Plane, PlaneError
from dataplane.replay.processes import Engines, engine_processes
from dataplane.replay.tally import ReplayTally, rate_gbps, total
from dataplane.replay.tenants import Shares
from dataplane.replay.trace import TraceRequest
from dataplane.replay.worker import Assignment, Finished, Start, WorkerJob, WorkerProgress, WorkerReady, work

TIMEOUT_S = 5.0
"""Seconds that an engine waits for the data plane before it counts a miss or a refusal. Long: a replay has time."""
_START_DELAY_S = 0.02
_STOP_S = 5.0


class EngineFailed(Exception):
    """An engine process ended without a result."""


class ReplayPlan(msgspec.Struct, frozen=True):
    """Requests to replay, with options."""

    requests: list[TraceRequest]
    engines: int = 1
    block_bytes: int = 4096
    shares: Shares | None = None
    """Tenants by weight. None: the tenants recorded in the trace, or the default tenant if it has none."""
    speed: float | None = None
    """Factor on the trace's own speed; None: as fast as possible."""
    verify: bool = True
    tier_wait_s: float = 0.0
    """Longest wait of a request for blocks in tiers; 0: do not load from tiers."""


class ReplayResult(msgspec.Struct, frozen=True):
    """Outcome of a replay."""

    tally: ReplayTally
    gbps_in: float
    """GB/s (10^9 bytes) at which the engines stored."""
    gbps_out: float
    """GB/s at which they read."""
    seconds: float
    """Seconds from the common start until the last engine has finished."""
    engines: int
    block_bytes: int
    tenants: int
    """Number of distinct tenants in the requests."""
    accounting: Accounting | None
    """Accounting of the data plane, or None if its control socket did not answer."""


def replay(plan: ReplayPlan, plane: Plane, on_progress: Callable[[int], None]) -> ReplayResult:
    """Drive `plane` with the plan. Call `on_progress` regularly with the number of requests served so far.

    Raises PlaneError when the engines cannot attach, and EngineFailed when one of them dies.
    """
    assignments = _assign(plan, plane.engine_socket)
    named = {f"engine {assignment.number}": (assignment,) for assignment in assignments}
    with engine_processes(work, named) as engines:
        pipes = list(engines)
        for pipe in pipes:
            ready = _receive(engines, pipe)
            if isinstance(ready, WorkerReady) and not ready.connected:
                raise PlaneError(ready.refusal or f"no data plane answered at {plane.engine_socket}")
        start = time.perf_counter() + _START_DELAY_S
        for pipe in pipes:
            _start(engines, pipe, start)
        tallies = _collect(engines, on_progress)
        seconds = time.perf_counter() - start
    tenants = len({job.tenant for assignment in assignments for job in assignment.jobs})
    tally = total(tallies)
    return ReplayResult(
        tally=tally,
        gbps_in=rate_gbps(tally.stored_bytes, (each.store_ns for each in tallies)),
        gbps_out=rate_gbps(tally.read_bytes, (each.read_ns for each in tallies)),
        seconds=seconds,
        engines=plan.engines,
        block_bytes=plan.block_bytes,
        tenants=tenants,
        accounting=_accounting(plane),
    )


def _assign(plan: ReplayPlan, socket_path: str) -> list[Assignment]:
    """Assign request i to engine i mod N."""
    jobs = [
        WorkerJob(
            due_s=request.timestamp / 1e3 / plan.speed if plan.speed else 0.0,
            tenant=plan.shares.of(number) if plan.shares else request.salt,
            ids=request.hash_ids,
        )
        for number, request in enumerate(plan.requests)
    ]
    return [
        Assignment(
            number=number,
            socket_path=socket_path,
            block_bytes=plan.block_bytes,
            verify=plan.verify,
            timeout_s=TIMEOUT_S,
            tier_wait_s=plan.tier_wait_s,
            jobs=jobs[number :: plan.engines],
        )
        for number in range(plan.engines)
    ]


def _receive(engines: Engines, pipe: Connection) -> WorkerReady | WorkerProgress | Finished:
    try:
        report: WorkerReady | WorkerProgress | Finished = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise _failure(engines[pipe]) from None
    return report


def _start(engines: Engines, pipe: Connection, at: float) -> None:
    try:
        pipe.send(Start(at))
    except (BrokenPipeError, ConnectionResetError):
        raise _failure(engines[pipe]) from None


def _failure(process: SpawnProcess) -> EngineFailed:
    """Return the error for a process that closed its pipe."""
    process.join(_STOP_S)
    code = process.exitcode or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}, see above"
    return EngineFailed(f"the process of {process.name} {how}")


def _collect(engines: Engines, on_progress: Callable[[int], None]) -> list[ReplayTally]:
    """Collect every engine's counts, in the engines' order."""
    served = dict.fromkeys(engines, 0)
    tallies: dict[Connection, ReplayTally] = {}
    while len(tallies) < len(engines):
        for pipe in wait([pipe for pipe in engines if pipe not in tallies]):
            assert isinstance(pipe, Connection)
            match _receive(engines, pipe):
                case WorkerProgress(requests=requests):
                    served[pipe] = requests
                case Finished(tally=tally):
                    served[pipe] = tally.requests
                    tallies[pipe] = tally
        on_progress(sum(served.values()))
    return [tallies[pipe] for pipe in engines]


def _accounting(plane: Plane) -> Accounting | None:
    if plane.control_url is None:
        return None
    try:
        with ControlLink(plane.control_url) as link:
            return accounting.settled(link)
    except (ControlError, ProtocolError):
        return None
