"""Runs jobs of `app.texts`, each in its own process, a few at a time, shared fairly among callers."""

import asyncio
import os
import signal
import subprocess
import sys

import msgspec

from app.child_process import child_process
from app.errors import Invalid, ServerBusy
from app.services.base.fair_limiter import Bounds, FairLimiter
from app.services.base.principals import Principal
from app.texts.jobs import CPU_S, MEMORY_BYTES, WALL_S, Answer, EncodeError, EncodeJob, EncodeResult
from dataplane.base.child_command import module_command
from dataplane.base.units import format_size

BOUNDS = Bounds(at_once=3, each_at_once=2, waiting=64, each_waiting=16)
RETRY_AFTER_S = 1.0
_CPU_LIMIT_SIGNALS = (-signal.SIGXCPU, -signal.SIGKILL)


class EncodeService:
    def __init__(self) -> None:
        self._limiter = FairLimiter("texts to encode", BOUNDS)

    async def run(self, job: EncodeJob, field: str, by: Principal) -> EncodeResult:
        """Run a job and return its result. A failure is reported as an error of the request field `field`. Raises
        Invalid, ServerBusy, TooManyRequests."""
        async with self._limiter.turn(by.share):
            answer = await _run_process(job, field)
        if isinstance(answer, EncodeError):
            raise Invalid.at(answer.field, answer.message)
        return answer


async def _run_process(job: EncodeJob, field: str) -> Answer:
    packed = await asyncio.to_thread(msgspec.msgpack.encode, job)
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        async with child_process(module_command("app.texts"), **streams, env=_environ()) as child:
            async with asyncio.timeout(WALL_S):
                output, _ = await child.communicate(packed)
    except TimeoutError:
        return EncodeError(field, f"encoding took longer than {WALL_S:g} s")
    except OSError as error:
        raise ServerBusy(f"the process that encodes cannot be started: {error.strerror}", RETRY_AFTER_S) from None
    if child.returncode in _CPU_LIMIT_SIGNALS:
        return EncodeError(field, f"encoding took longer than {CPU_S} s of processor time")
    try:
        answer: Answer = msgspec.msgpack.decode(output, type=Answer)
    except (msgspec.DecodeError, RecursionError):
        return EncodeError(
            field,
            "the tokenizer or its chat template failed; encoding may use at most "
            f"{format_size(MEMORY_BYTES)} of memory",
        )
    return answer


def _environ() -> dict[str, str]:
    """Return the environment of the child: the import path of this process, and nothing else that a text could use."""
    path = os.pathsep.join(part for part in sys.path if part)
    return {"PYTHONPATH": path, "PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}
