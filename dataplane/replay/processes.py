"""Engine processes, each with a pipe to this one."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

_STOP_S = 10.0

Engines = dict[Connection, SpawnProcess]
"""Engine processes by their pipe."""


@contextmanager
def engine_processes(work: Callable[..., None], arguments: Mapping[str, tuple[Any, ...]]) -> Iterator[Engines]:
    """Start a process for each name, which calls `work` with these arguments and its end of a pipe. All have ended when
    the context exits. They are spawned, never forked, because a client does not survive a fork."""
    spawn = multiprocessing.get_context("spawn")
    engines: Engines = {}
    try:
        for name, given in arguments.items():
            own_end, end = spawn.Pipe()
            process = spawn.Process(target=work, args=(*given, end), name=name)
            process.start()
            end.close()
            engines[own_end] = process
        yield engines
    finally:
        for process in engines.values():
            process.terminate()
        for pipe, process in engines.items():
            pipe.close()
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join(_STOP_S)
