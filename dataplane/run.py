"""Run a data plane in this process until a signal ends it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import zmq

from dataplane.base.settings import SettingsError
from dataplane.compose import DataPlane
from dataplane.holding.connection import HolderConnection
from dataplane.membership import JoinFailed
from dataplane.protocol.barrier import UnsupportedMachine
from dataplane.protocol.signals import HAND_OVER_SIGNAL, HANDED_OVER_EXIT_CODE, RELEASE_SIGNAL
from dataplane.recovery.retained_cache import Ending
from dataplane.recovery.service_manager import ServiceManager
from dataplane.recovery.state import StateInUse
from dataplane.recovery.supervision import SupervisorConnection
from dataplane.settings import DataPlaneSettings
from dataplane.sockets.engine import SocketInUse

EXPECTED_FAILURES = (
    SettingsError,
    UnsupportedMachine,
    JoinFailed,
    SocketInUse,
    StateInUse,
    zmq.ZMQError,
    OSError,
    MemoryError,
)
"""Reasons for a start to fail that are no defect of the memory which is held."""


def serve(settings: DataPlaneSettings, supervisor: SupervisorConnection | None = None) -> int:
    """Run a data plane in this process until SIGTERM or SIGINT, and return the exit code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # every engine and every segment needs a few descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stops: list[Ending] = []
    running: list[DataPlane] = []

    def stop_as(ending: Ending) -> Callable[..., None]:
        def stop(*_: object) -> None:
            stops.append(ending)
            for plane in running:
                plane.stop(ending)

        return stop

    # Before the data plane listens: a process that sees its socket may stop it at once.
    end = Ending.KEEP if settings.table.keep_memory_s else Ending.RELEASE
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_as(end))
    signal.signal(HAND_OVER_SIGNAL, stop_as(Ending.HAND_OVER))
    signal.signal(RELEASE_SIGNAL, stop_as(Ending.RELEASE))
    # Also a supervised process removes the variables of the service manager: they are its supervisor's.
    manager = ServiceManager.of(os.environ)
    table = settings.table
    holder = HolderConnection(Path(settings.common.state_dir), table.keep_memory_s, external=table.external_holder)
    try:
        plane = DataPlane(
            settings, supervisor=supervisor, service_manager=manager if supervisor is None else None, holder=holder
        )
    except BaseException as error:
        holder.start_failed(because_of_memory=not isinstance(error, EXPECTED_FAILURES))
        raise
    running.append(plane)
    if stops:
        plane.stop(stops[-1])
    plane.run()
    return HANDED_OVER_EXIT_CODE if plane.handed_over else 0
