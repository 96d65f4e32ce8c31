"""Wakes the mover when messages or ended calls have made work for it, once for all of them."""

from __future__ import annotations

from collections.abc import Callable

from dataplane.io.loop import Loop
from dataplane.observe.trace import BatchSpans


class Wake:
    """Calls the listener soon after `set`, on the loop."""

    def __init__(self, loop: Loop, spans: BatchSpans) -> None:
        """`spans` are linked to the requests that made the work."""
        self._loop, self.spans = loop, spans
        self._listeners: list[Callable[[], None]] = []
        self._is_set = False

    def listen(self, call: Callable[[], None]) -> None:
        """Call this when there may be work."""
        self._listeners.append(call)

    def set(self) -> None:
        """Note that there may be work, once the current message has been handled."""
        self.spans.note_cause()
        if not self._is_set:
            self._is_set = True
            self._loop.once(0.0, self._call)

    def _call(self) -> None:
        self._is_set = False
        for call in self._listeners:
            call()
