"""Clients by connection: the release that their requests tell, and their requests that were refused as a whole.

The protocol has no version. The first key of a connection distinguishes the ranges of releases in `_release_of`, not
the releases of one range. A release after them is noticed by its first request that no earlier one sends: an operation,
an argument, or a field of a key or of a registration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
import structlog

from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.wire.frames import RawRequest
from dataplane.gateways.lmcache.wire.messages import EngineContext, Key
from dataplane.gateways.lmcache.wire.operations import DIALECT_050, RequestDecoder
from dataplane.gateways.lmcache.zmtp.connections import ZmtpPeer
from dataplane.protocol.stats.gateways import GatewayClient

MAX_CLIENTS_SHOWN = 256
MAX_CLOSED = 16
"""Number of closed connections that are kept because requests of them were refused."""
MAX_TEXT_CHARACTERS = 200

_REFUSED_AS_A_WHOLE = (Reason.BAD_ARGUMENTS, Reason.UNKNOWN_OPERATION, Reason.UNSUPPORTED, Reason.PICKLED)
_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])

log = structlog.stdlib.get_logger()


@dataclass(eq=False, slots=True)
class GatewayClientRecord:
    """What is known of the client of one connection."""

    decoder: RequestDecoder = field(default_factory=RequestDecoder)
    release: str = ""
    """Releases that send such requests; empty before the first key."""
    unknown: str = ""
    """First thing that no known release sends; empty if there is none."""
    refused: int = 0
    """Number of requests that were refused as a whole."""
    reason: str = ""
    """Why the latest of them was refused."""

    def note_arguments(self, peer: ZmtpPeer, raw: RawRequest, arguments: list[Any]) -> None:
        """Learn the release from the first key, and fields of no known release from it and from registrations."""
        first = arguments[0] if arguments else None
        if isinstance(first, Key):
            if self.release:
                return
            self.release, kind = _release_of(first, self.decoder), "key"
        elif isinstance(first, EngineContext):
            kind = "registration"
        else:
            return
        fields: list[str] = []
        with suppress(ValueError, RecursionError):  # names that are not text
            fields = sorted(_map.decode(raw.arguments[0]).keys() - set(first.__struct_fields__))
        if fields:
            self.note_unknown(peer, f"fields of a {kind}: {', '.join(fields)}")

    def note_failed(self, operation: str, failed: OperationFailed) -> None:
        """Count a request that failed if it was refused as a whole."""
        if failed.reason in _REFUSED_AS_A_WHOLE:
            self.refused += 1
            self.reason = f"{operation}: {failed}"[:MAX_TEXT_CHARACTERS]

    def note_unknown(self, peer: ZmtpPeer, sent: str) -> None:
        """Log the first thing that no known release sends."""
        if not self.unknown:
            self.unknown = sent[:MAX_TEXT_CHARACTERS]
            log.warning(
                "lmcache.unknown_release",
                pid=_pid_of(peer),
                sent=self.unknown,
                effect="requests of this client may be refused: see larder doctor",
            )


class GatewayClients:
    """Records of the clients of all connections."""

    def __init__(self) -> None:
        self._records: dict[ZmtpPeer, GatewayClientRecord] = {}
        self._closed: deque[GatewayClient] = deque(maxlen=MAX_CLOSED)

    def of(self, peer: ZmtpPeer) -> GatewayClientRecord:
        """Return the record of a connection; a new one for its first request."""
        record = self._records.get(peer)
        if record is None:
            record = self._records[peer] = GatewayClientRecord()
        return record

    def closed(self, peer: ZmtpPeer) -> None:
        """Forget a connection, unless requests of it were refused."""
        record = self._records.pop(peer, None)
        if record is not None and (record.refused or record.unknown):
            self._closed.append(_shown(peer, record, connected=False))

    def shown(self) -> list[GatewayClient]:
        """Return at most MAX_CLIENTS_SHOWN clients, those with refused requests first."""
        return list(islice(self._in_order(), MAX_CLIENTS_SHOWN))

    def _in_order(self) -> Iterator[GatewayClient]:
        for wrong in (True, False):
            for peer, record in self._records.items():
                if bool(record.refused or record.unknown) is wrong:
                    yield _shown(peer, record, connected=True)
            if wrong:
                yield from self._closed


def _release_of(key: Key, decoder: RequestDecoder) -> str:
    if key.token_bytes is not None:
        return "0.5.7"
    if decoder.dialect is DIALECT_050:
        return "0.5.0 to 0.5.2"
    return "0.5.5 or 0.5.6" if key.num_kv_readers else "0.5.3 or 0.5.4"


def _pid_of(peer: ZmtpPeer) -> int:
    return 0 if peer.resolved_owner is None else peer.resolved_owner[0]


def _shown(peer: ZmtpPeer, record: GatewayClientRecord, *, connected: bool) -> GatewayClient:
    return GatewayClient(_pid_of(peer), record.release, record.unknown, record.refused, record.reason, connected)
