"""What an engine learns of its connection: events, and the refusal of an attach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dataplane.protocol.codes import Code


class AttachRefused(Exception):
    """Raised when a data plane is running but refuses this engine. Carries its `code` and message."""

    def __init__(self, code: Code, message: str, field: str) -> None:
        super().__init__(f"{code.name.lower()}: {message}" + (f" ({field})" if field else ""))
        self.code = code
        self.field = field


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """Event that an engine may want to log.

    Names: `attached`, `lost`, `refused` (of an attach), `REQUEST_refused` for the requests `reserve`, `commit`,
    `prefetch`, `map_tiers`, `map`, `lease`, `report` and `report_request`, `timeout`, `corrupt` (a block does not match
    its checksum and was not returned), and `fault` (the data plane violated the protocol and its answer was discarded).
    A refusal with the same message as the last one of its name is not an event.
    """

    name: str
    detail: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
