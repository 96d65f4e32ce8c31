"""A whole replay: the data plane, the engine processes, the progress, the sum at the end."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import msgspec

from dataplane.protocol.codes import ProtocolError
from dataplane.replay import accounting
from dataplane.replay.accounting import Accounting
from dataplane.replay.control import ControlError, ControlLink
from dataplane.replay.plane import Plane, PlaneError
from dataplane.replay.tally import Tally, total
from dataplane.replay.tenants import Shares
from dataplane.replay.trace import Request
from dataplane.replay.worker import Assignment, Finished, Job, Progress, Ready, Start, work

TIMEOUT_S = 5.0
"""How long an engine waits for the data plane before it counts a miss or a refusal: a replay is patient."""
_START_DELAY_S = 0.02
_STOP_S = 5.0


Engines = dict[Connection, SpawnProcess]
"""Engine processes by the pipe to each."""


class EngineFailed(Exception):
    """An engine process ended without a result."""


class Plan(msgspec.Struct, frozen=True):
    """What to replay, and how."""

    requests: list[Request]
    engines: int = 1
    block_bytes: int = 4096
    shares: Shares | None = None
    """None: as the trace says; without a word there, the tenant without a name."""
    speed: float | None = None
    """Times the trace's own speed; None: as fast as possible."""
    verify: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """What came out."""

    tally: Tally
    seconds: float
    """From the common start to the last engine's end."""
    engines: int
    block_bytes: int
    tenants: int
    """How many different ones the requests were given to."""
    accounting: Accounting | None
    """None when the data plane could not be asked."""


def replay(plan: Plan, plane: Plane, told: Callable[[int], None] = lambda requests: None) -> Outcome:
    """Drive `plane` with the plan; `told` is called now and then with the number of requests served so far.

    Raises PlaneError when the engines cannot attach and EngineFailed when one of them dies.
    """
    assignments = _assign(plan, plane.engine_socket)
    with _engines(assignments) as engines:
        pipes = list(engines)
        for pipe in pipes:
            ready = _receive(engines, pipe)
            if isinstance(ready, Ready) and not ready.connected:
                raise PlaneError(ready.refusal or f"no data plane answered at {plane.engine_socket}")
        start = time.perf_counter() + _START_DELAY_S
        for pipe in pipes:
            _start(engines, pipe, start)
        tallies = _collect(engines, told)
        seconds = time.perf_counter() - start
    tenants = len({job.tenant for assignment in assignments for job in assignment.jobs})
    return Outcome(total(tallies), seconds, plan.engines, plan.block_bytes, tenants, _books(plane))


def _assign(plan: Plan, socket_path: str) -> list[Assignment]:
    """Request i goes to engine i mod N."""
    jobs = [
        Job(
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
            jobs=jobs[number :: plan.engines],
        )
        for number in range(plan.engines)
    ]


@contextmanager
def _engines(assignments: list[Assignment]) -> Iterator[Engines]:
    """One process for each assignment, in order; all of them are gone afterwards."""
    spawn = multiprocessing.get_context("spawn")
    engines: Engines = {}
    try:
        for assignment in assignments:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=work, args=(assignment, theirs), name=f"engine {assignment.number}"
            )
            process.start()
            theirs.close()
            engines[ours] = process
        yield engines
    except BaseException:
        for process in engines.values():
            process.terminate()
        raise
    finally:
        for pipe, process in engines.items():
            pipe.close()
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()


def _receive(engines: Engines, pipe: Connection) -> Ready | Progress | Finished:
    try:
        said: Ready | Progress | Finished = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise _failure(engines[pipe]) from None
    return said


def _start(engines: Engines, pipe: Connection, at: float) -> None:
    try:
        pipe.send(Start(at))
    except (BrokenPipeError, ConnectionResetError):
        raise _failure(engines[pipe]) from None


def _failure(process: SpawnProcess) -> EngineFailed:
    """Of a process that closed its pipe."""
    process.join(_STOP_S)
    code = process.exitcode or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}, see above"
    return EngineFailed(f"the process of {process.name} {how}")


def _collect(engines: Engines, told: Callable[[int], None]) -> list[Tally]:
    """Every engine's counts, in the engines' order."""
    served = dict.fromkeys(engines, 0)
    tallies: dict[Connection, Tally] = {}
    while len(tallies) < len(engines):
        for pipe in wait([pipe for pipe in engines if pipe not in tallies]):
            assert isinstance(pipe, Connection)
            match _receive(engines, pipe):
                case Progress(requests=requests):
                    served[pipe] = requests
                case Finished(tally=tally):
                    served[pipe] = tally.requests
                    tallies[pipe] = tally
        told(sum(served.values()))
    return [tallies[pipe] for pipe in engines]


def _books(plane: Plane) -> Accounting | None:
    if plane.control_url is None:
        return None
    try:
        with ControlLink(plane.control_url) as link:
            return accounting.settled(link)
    except (ControlError, ProtocolError):
        return None
