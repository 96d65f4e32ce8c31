"""Interleavings of two calls: one stops before a step of its code, and the other one runs meanwhile.

A call that may run beside `close` or a fork is tried at every place where the other one can come.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, NoReturn

from tests import threads
from tests.sizes import size

ROOT = Path(__file__).parents[1]
STEP_S = 60.0
MEANWHILE_S = 0.01
"""Longest wait for the other call while the first one is stopped: it may need a lock that the first one has."""
CHILD_S = 60
"""Seconds after which a forked child that waits for a lock is killed."""


class Pair(NamedTuple):
    """Two calls of which one is stopped while the other one runs."""

    stopped: Callable[[], object]
    meanwhile: Callable[[], object]


def undocumented(
    make: Callable[[], AbstractContextManager[Pair]],
    folder: str,
    documented: tuple[type[Exception], ...],
    *,
    opcodes: bool = False,
    every: int = 9,
    meanwhile_s: float = MEANWHILE_S,
) -> Iterator[str]:
    """Yield each error other than the `documented` ones of two calls, with the place at which the first one stopped.

    `make` is called for each place. The first call is stopped before each line that it runs in modules below `folder`
    (from the root of the repository), or, with `opcodes`, before each instruction; in a usual run before one of
    `every`. It goes on when the other call has ended, or after `meanwhile_s` seconds.
    """
    step, reached = 1, True
    while reached:
        with make() as pair:
            place, raised = _interleave(pair, folder, step, opcodes, meanwhile_s)
        reached = bool(place)
        step += size(1, every)
        yield from (f"{place}: {error!r}" for error in raised if not isinstance(error, documented))
    assert step > 1 + size(1, every), f"nothing of {folder} ran"


def _interleave(pair: Pair, folder: str, step: int, opcodes: bool, meanwhile_s: float) -> tuple[str, list[Exception]]:
    """Return the place of the step, which is empty if the first call has fewer, and what both calls raised."""
    place, raised = "", []
    stopped, goes_on = threading.Event(), threading.Event()
    seen: set[tuple[CodeType, int]] = set()
    below = f"{ROOT / folder}/"

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal place
        if event == "call":
            if not frame.f_code.co_filename.startswith(below):
                return None
            frame.f_trace_opcodes = opcodes
        elif event == ("opcode" if opcodes else "line") and not place:
            seen.add((frame.f_code, frame.f_lasti if opcodes else frame.f_lineno))
            if len(seen) == step:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                stopped.set()
                goes_on.wait(STEP_S)
        return trace

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # the test looks at it
            raised.append(error)

    def traced() -> None:
        sys.settrace(trace)
        try:
            run(pair.stopped)
        finally:
            sys.settrace(None)
            stopped.set()

    first = threading.Thread(target=traced, name=f"stopped at step {step}", daemon=True)
    second = threading.Thread(target=run, args=(pair.meanwhile,), name=f"beside step {step}", daemon=True)
    gc.disable()  # it would run finalizers, which are code of the folder too, within locks of the standard library
    try:
        first.start()
        assert stopped.wait(STEP_S)
        second.start()
        second.join(meanwhile_s)
        goes_on.set()
        threads.join(first, second)
    finally:
        gc.enable()
    return place, raised


def in_a_child(check: Callable[[], object]) -> None:
    """Fork, and run `check` in the child. Raise AssertionError if it raises there, or waits for CHILD_S seconds."""
    child = os.fork()
    if child == 0:
        _check_and_end(check)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, "waits for ever" if code == -signal.SIGALRM else f"exit code {code}"


def _check_and_end(check: Callable[[], object]) -> NoReturn:
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_S)
        check()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  # it must not return into the test
        os.write(2, f"{error!r}\n".encode())
    finally:
        os._exit(1)
