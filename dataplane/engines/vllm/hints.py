"""Options of a request: keys `larder.*` of its `kv_transfer_params`, and actions of its `kv_hints` with the same names.

They come from clients, so a value of any type may arrive. An option that cannot be used is ignored and reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dataplane.protocol.sessions import EXPECTED_SESSION, is_session

PREFIX = "larder."
MAX_HINT_S = 366 * 86_400.0
"""A longer duration is taken for a mistake. The data plane shortens valid ones to its own maximum."""
_SWITCHES = ("skip_load", "skip_save")
_DURATIONS = ("ttl", "pin")
_SESSION = "session"
MAX_OPTIONS = 64
"""Options and actions of a request beyond this number are not read."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What the client of a request asks for."""

    skip_load: bool = False
    skip_save: bool = False
    ttl_s: float = 0.0
    """Drop the blocks that the request stores after this time without use; 0 for never."""
    pin_s: float = 0.0
    """Evict the request's blocks after other blocks of the tenant for this time; 0 for none."""
    session: str = ""
    """Name of the conversation that the request belongs to; empty for none."""
    ignored: tuple[str, ...] = ()
    """Errors, one for each option that was ignored."""


def read_options(request: Any) -> RequestOptions:
    """Return the options of a vLLM request. `kv_transfer_params` take precedence over `kv_hints`, and both over vLLM's
    own `session_id` (from 0.28 on), which is not for Larder alone: one that cannot name a session is not reported."""
    switches = dict.fromkeys(_SWITCHES, False)
    seconds = dict.fromkeys(_DURATIONS, 0.0)
    session = getattr(request, "session_id", None)
    if not (isinstance(session, str) and is_session(session)):
        session = ""
    ignored = []
    options: dict[str, Any] = {}
    for name, value in _options_of(request):
        options.setdefault(name, value)
    for name, value in options.items():
        if name in switches:
            if isinstance(value, int) and value in (0, 1):
                switches[name] = bool(value)
            else:
                ignored.append(f"{PREFIX}{name}: expected true or false, got {_shown(value)}")
        elif name == _SESSION:
            if isinstance(value, str) and is_session(value):
                session = value
            else:
                ignored.append(f"{PREFIX}{name}: {EXPECTED_SESSION}; got {_shown(value)}")
        elif name not in seconds:
            allowed = ", ".join(PREFIX + option for option in (*_SWITCHES, *_DURATIONS, _SESSION))
            ignored.append(f"{PREFIX + name!r:.80}: unknown; expected one of {allowed}")
        elif (duration := _duration(value)) is None:
            ignored.append(
                f"{PREFIX}{name}: expected seconds, above 0 and at most {MAX_HINT_S:.0f}, got {_shown(value)}"
            )
        else:
            seconds[name] = duration
    return RequestOptions(
        **switches, ttl_s=seconds["ttl"], pin_s=seconds["pin"], session=session, ignored=tuple(ignored)
    )


def _options_of(request: Any) -> Iterator[tuple[str, Any]]:
    """Yield names without their prefix, and values."""
    params = request.kv_transfer_params
    if isinstance(params, Mapping):
        own = (key for key in params if isinstance(key, str) and key.startswith(PREFIX))
        for key in islice(own, MAX_OPTIONS):  # of other connectors there may be any number before them
            yield key.removeprefix(PREFIX), params[key]
    actions = getattr(getattr(request, "kv_hints", None), "actions", None)
    for action in actions[:MAX_OPTIONS] if isinstance(actions, list) else ():
        kind = getattr(action, "action_type", None)
        if not isinstance(kind, str) or not kind.startswith(PREFIX):
            continue
        name = kind.removeprefix(PREFIX)
        payload = getattr(action, "payload", None)
        if name in _SWITCHES:
            yield name, True
        else:
            field = "name" if name == _SESSION else "seconds"
            yield name, payload.get(field) if isinstance(payload, Mapping) else payload


def _duration(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_HINT_S:
        return float(value)
    return None


def _shown(value: Any) -> str:
    """Return a value as short text. Python does not print very large integers."""
    if isinstance(value, str):
        return repr(value[:32])
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return repr(value)
    return "a large integer" if isinstance(value, int) else type(value).__name__
