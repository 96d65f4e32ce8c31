"""Runs jobs of `app.texts`, each in a process of its own, a few at a time, and no caller's alone."""

import asyncio
import os
import signal
import sys

import msgspec

from app.errors import FieldError, Invalid, TooManyRequests
from app.services.callers import Caller
from app.services.fair_turns import Bounds, FairTurns, Full
from app.texts.jobs import CPU_S, MEMORY_BYTES, WALL_S, Answer, Done, Failed, Job
from dataplane.protocol.units import format_size

BOUNDS = Bounds(at_once=3, each_at_once=2, waiting=64, each_waiting=16)
_LONG = (-signal.SIGXCPU, -signal.SIGKILL)


class Tokenizing:
    def __init__(self) -> None:
        self._turns = FairTurns(BOUNDS)

    async def run(self, job: Job, field: str, by: Caller) -> Done:
        """`field` of the request is at fault when the job ends in no good way. Raises Invalid, TooManyRequests."""
        try:
            async with self._turns.turn(by.share):
                answer = await _worked(job, field)
        except Full as full:
            whose = f"of {by.actor!r} " if full.own else ""
            raise TooManyRequests(
                f"{full.waiting} texts {whose}wait for their tokens already; try again in a moment"
            ) from None
        if isinstance(answer, Failed):
            raise _invalid(answer.field, answer.message)
        return answer


async def _worked(job: Job, field: str) -> Answer:
    packed = await asyncio.to_thread(msgspec.msgpack.encode, job)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "app.texts",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environ(),
    )
    try:
        async with asyncio.timeout(WALL_S):
            told, _ = await child.communicate(packed)
    except TimeoutError:
        return Failed(field, f"it took longer than {WALL_S:g} s")
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode in _LONG:
        return Failed(field, f"it took longer than {CPU_S} s of processor time")
    try:
        answer: Answer = msgspec.msgpack.decode(told, type=Answer)
    except msgspec.DecodeError:
        return Failed(
            field,
            f"the tokenizer or its template failed; a job may take {format_size(MEMORY_BYTES)} of memory",
        )
    return answer


def _environ() -> dict[str, str]:
    """This package is found where it was found here; nothing else of the environment is a text's business."""
    path = os.pathsep.join(part for part in sys.path if part)
    return {"PYTHONPATH": path, "PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}


def _invalid(path: str, message: str) -> Invalid:
    return Invalid(f"{path}: {message}", [FieldError(path, message)])
