"""Guards of a connector's methods: no error of a connector may reach the engine that called it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

LOG_INTERVAL_S = 10.0

Method = TypeVar("Method", bound=Callable[..., Any])


class ErrorLog:
    """Errors that a connector caught. Threads may share it."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[str, float] = {}
        self._count = 0

    def due(self, kind: str) -> bool:
        """Return whether a line of this kind may be logged now: at most one in 10 seconds."""
        now = self._clock()
        with self._lock:
            if now - self._logged.get(kind, -LOG_INTERVAL_S) < LOG_INTERVAL_S:
                return False
            self._logged[kind] = now
            return True

    def note(self, where: str) -> None:
        """Count the current exception of the method `where`, and log it if a line is due."""
        with self._lock:
            self._count += 1
        if self.due(where):
            self._log.exception("error in %s; the engine continues without the result of this call", where)

    def take_count(self) -> int:
        """Return the number of errors since the last call."""
        with self._lock:
            count, self._count = self._count, 0
        return count


class Guarded(Protocol):
    """An object with guarded methods."""

    errors: ErrorLog


def guarded(default: Callable[[], Any] = lambda: None) -> Callable[[Method], Method]:
    """Return a decorator that logs an error of a method and then returns `default()`."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def call(self: Guarded, *args: Any, **options: Any) -> Any:
            try:
                return method(self, *args, **options)
            except Exception:  # noqa: BLE001  no error here may end the engine
                self.errors.note(method.__name__)
                return default()

        return cast("Method", call)

    return decorate
