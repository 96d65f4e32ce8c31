"""Sums of refused blocks for the history. The first refusal of a tenant for a reason is stored at once, so that its
time is known; later ones are stored as one event per minute."""

import time
from dataclasses import dataclass

import msgspec

from app.observe.catalogue import name_of
from app.observe.events import LarderEvent
from dataplane.protocol.events import BlocksRefused

REFUSED = name_of(BlocksRefused)
EVERY_S = 60.0
MAX_GROUPS = 500
OTHER = "other"
"""Tenant and node of refusals beyond `MAX_GROUPS`."""


@dataclass
class _Group:
    due_at: float
    """Monotonic time from which the sum may be stored."""
    sum: LarderEvent | None


class RefusalSums:
    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], _Group] = {}

    def add(self, event: LarderEvent) -> None:
        reason = str(event.fields.get("reason"))
        key = (event.node, str(event.fields.get("tenant")), reason)
        if key not in self._groups and len(self._groups) >= MAX_GROUPS:
            key = (OTHER, OTHER, reason)
            event = msgspec.structs.replace(event, node="", fields={**event.fields, "tenant": OTHER})
        group = self._groups.setdefault(key, _Group(time.monotonic(), None))
        group.sum = event if group.sum is None else _added(group.sum, event)

    def due(self, now: float) -> list[LarderEvent]:
        """Return the sums to store at monotonic time `now`."""
        sums = []
        for key, group in list(self._groups.items()):
            if now < group.due_at:
                continue
            if group.sum is None:
                del self._groups[key]  # no refusal for a while: the next one is stored at once
                continue
            sums.append(group.sum)
            group.sum, group.due_at = None, now + EVERY_S
        return sums


def _added(total: LarderEvent, event: LarderEvent) -> LarderEvent:
    fields = dict(event.fields)
    for name in ("blocks", "bytes", "events"):
        fields[name] = total.fields[name] + event.fields[name]
    return msgspec.structs.replace(event, fields=fields)
