"""The event stream of the API, followed across restarts of the management plane."""

import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import msgspec

from app.cli.support.api.client import ApiError, base_url, every, stream
from app.cli.support.exit_codes import Unreachable

RETRY_MIN_S = 0.25
RETRY_MAX_S = 30.0
SILENCE_S = 12.0
"""The stream brings an overview at least every 2 s; after this long without a byte it is taken for broken."""
SLACK_S = 60.0
"""Seconds before an interruption from which the history is read: the clocks of nodes differ."""
MAX_MISSED = 10_000
MAX_REMEMBERED = 10_000
SUMMED = "blocks.refused"
"""The history has sums of these events, which the stream sends one by one."""
_ANY_PROCESS = "0-0"
"""An id of no process, for which the stream begins with the newest events."""

Event = dict[str, Any]
T = TypeVar("T")


class _StreamedEvent(msgspec.Struct):
    at: float
    name: str
    node: str
    actor: str
    fields: dict[str, Any]


class _OverviewTime(msgspec.Struct):
    at: float


class FollowedEvents:
    """Receives events from the stream. After an interruption it reconnects, and takes what it missed from the stream
    and the history."""

    def __init__(self, url: str | None, note: Callable[[str], None]) -> None:
        """`note` gets a sentence about an interruption, and about events that are missing."""
        self._url = url
        self._note = note
        self._last_id = _ANY_PROCESS
        self._at = 0.0
        """Time of the newest overview by the clock of the management plane; 0 before the first."""
        self._received: OrderedDict[str, None] = OrderedDict()
        """Keys of the newest events, oldest first."""

    def batches(self) -> Generator[list[Event], None, None]:
        """Yield events as they arrive, and an empty list at least every few seconds while the stream is open. The first
        batch has the newest events before. Raises ClickException if the first connection or a permission fails."""
        wait_s = RETRY_MIN_S
        is_interrupted = False
        while True:
            reason = "the stream of events ended"
            try:
                for batch in self._connection():
                    if is_interrupted:
                        self._note("connected again")
                    is_interrupted, wait_s = False, RETRY_MIN_S
                    yield batch
            except ApiError as refused:
                if not self._at or (refused.status < 500 and refused.status != 429):
                    raise
                reason = refused.message
            except Unreachable as error:
                reason = error.message
            if not self._at:
                raise Unreachable(reason)
            if not is_interrupted:
                self._note(f"{reason}; trying again until it answers")
            is_interrupted = True
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_MAX_S)

    def remember(self, events: list[Event]) -> None:
        """Do not yield these events again."""
        self._received.update(dict.fromkeys(map(key, events)))
        while len(self._received) > MAX_REMEMBERED:
            self._received.popitem(last=False)

    def _connection(self) -> Iterator[list[Event]]:
        """Yield the events of one connection."""
        missed: list[Event] | None = []
        headers = {"Last-Event-ID": self._last_id}
        for name, number, data in _messages(stream(self._url, "/api/v1/events", {}, headers, SILENCE_S)):
            if name == "event":
                event = {"id": number, **msgspec.structs.asdict(self._decoded(data, _StreamedEvent))}
                if missed is not None:
                    missed.append(event)
                    continue
                if gap := _gap(self._last_id, number):
                    self._note(
                        f"{gap:,} events are missing: too many came at once; 'larder events list' has the stored ones"
                    )
                # The history had it already if it occurred while that was read.
                yield self._remembered([] if key(event) in self._received else [event], [event])
            else:  # an overview, or a comment in its place: it follows all events that were missed
                if missed is not None:
                    yield self._remembered(self._caught_up(missed) if self._at else missed, missed)
                    missed = None
                if name == "overview":
                    self._at = self._decoded(data, _OverviewTime).at
                yield []

    def _remembered(self, events: list[Event], streamed: list[Event] | None = None) -> list[Event]:
        streamed = events if streamed is None else streamed
        if streamed:
            self._last_id = streamed[-1]["id"]
        self.remember(events)
        return events

    def _caught_up(self, streamed: list[Event]) -> list[Event]:
        """Return what happened during an interruption, oldest first: events that the stream sent again, and those that
        only the history has."""
        query = {"since": str(max(self._at - SLACK_S, 0.0)), "sort": "-id"}
        stored = every(self._url, "/api/v1/events/history", query, MAX_MISSED)["items"]
        new = [event for event in streamed if key(event) not in self._received]
        received = {*self._received, *map(key, new)}
        missed = [event for event in stored if key(event) not in received and event["name"] != SUMMED]
        missing = _missing(self._last_id, self._at, streamed) - len(missed)
        if missing > 0:
            self._note(f"up to {missing:,} events are missing: they are not in the history")
        return sorted(missed + new, key=lambda event: float(event["at"]))

    def _decoded(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreachable(f"{base_url(self._url)} sent an invalid event: {error}") from None


def key(event: Event) -> str:
    """Return a text that is the same for an event of the stream and its copy in the history."""
    values = [event[name] for name in ("at", "name", "node", "actor", "fields")]
    return msgspec.json.encode(values, order="sorted").decode()


def _missing(last_id: str, last_at: float, streamed: list[Event]) -> int:
    """Return how many events at most happened after the last one and before those that the stream sent again."""
    if not streamed:
        return 0
    first = streamed[0]
    if _process(first["id"]) == _process(last_id):
        return _gap(last_id, first["id"])
    # Another process: the stream begins with its newest events, which may reach back before the interruption.
    return 0 if first["at"] <= last_at else _number(first["id"]) - 1


def _gap(last_id: str, number: str) -> int:
    """Return the number of events between two ids of the same process."""
    return _number(number) - _number(last_id) - 1 if _process(number) == _process(last_id) else 0


def _process(number: str) -> str:
    return number.partition("-")[0]


def _number(number: str) -> int:
    digits = number.partition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else 0


def _messages(parts: Iterator[bytes]) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, id and data of each server-sent event; a comment has the name ``:``."""
    name, number, data = "", "", b""
    for line in _lines(parts):
        field, _, value = line.partition(b": ")
        if not line:
            if name:
                yield name, number, data
            name, number, data = "", "", b""
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"id":
            number = value.decode("utf-8", "replace")
        elif field == b"data":
            data = value
        elif line.startswith(b":"):
            name = ":"


def _lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    pieces: list[bytes] = []
    for part in parts:
        *ended, piece = part.split(b"\n")
        for line in ended:
            yield b"".join((*pieces, line))
            pieces.clear()
        pieces.append(piece)
