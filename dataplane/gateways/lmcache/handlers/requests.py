"""A decoded request, the chunks that its key names, and checks of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.chains import TokenChain
from dataplane.gateways.lmcache.handlers.clients import GatewayClientRecord
from dataplane.gateways.lmcache.wire.frames import RawRequest
from dataplane.gateways.lmcache.wire.messages import Key
from dataplane.gateways.lmcache.wire.operations import Operation
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.gateways.lmcache.workers.registry import Instance
from dataplane.gateways.lmcache.workers.transfers import Transfer
from dataplane.gateways.lmcache.zmtp.connections import ZmtpPeer
from dataplane.protocol.keys import KEY_BYTES

MAX_REQUEST_ID_CHARACTERS = 512


class DeferredResult(Enum):
    """Result of a deferred operation, which ends with `GatewayRequest.finish`."""

    LATER = 0


LATER = DeferredResult.LATER
Result = bytes | DeferredResult | None
"""The encoded result; None for an answer without a result frame."""
MakeResult = Callable[[], Result]
"""Returns the result of an operation, or raises its failure."""


@dataclass(eq=False, slots=True)
class GatewayRequest:
    """One decoded request."""

    peer: ZmtpPeer
    client: GatewayClientRecord
    operation: Operation
    now: float
    same: TokenChain | None
    """Chain with the tokens of its key, if they were left out of the arguments."""
    raw: RawRequest
    began: float
    _finish: Callable[[GatewayRequest, MakeResult], None]
    slot: int = -1
    """Slot of its record in `PendingRequests` while the answer is pending; -1 for none."""
    answered: bool = False
    """Whether the answer of a deferred operation was given."""

    def finish(self, make_result: MakeResult) -> None:
        """Answer a deferred operation with its result or its failure, unless the result is LATER. Never raise."""
        self._finish(self, make_result)


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks that a worker's key names, in its space."""

    instance: Instance
    transfer: Transfer
    tenant: str
    keys: bytes
    chain: bytes
    """Keys from the start of the request to the end of the chunks."""
    session: str
    """Session of the request; empty for none."""

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES

    @property
    def parent(self) -> bytes:
        """Return the key before the first one; empty at the start of a request."""
        before = len(self.chain) - len(self.keys)
        return self.chain[max(0, before - KEY_BYTES) : before]

    def first(self, count: int) -> Chunks:
        """Return the first `count` chunks."""
        keys = self.keys[: count * KEY_BYTES]
        space, start, _, _ = self.transfer
        transfer = Transfer(space, start, start + count * CHUNK_TOKENS, keys[-KEY_BYTES:])
        chain = self.chain[: len(self.chain) - len(self.keys) + len(keys)]
        return Chunks(self.instance, transfer, self.tenant, keys, chain, self.session)


def check_key(key: Key) -> None:
    """Raise OperationFailed if a key violates the rules that all operations share."""
    if len(key.request_id) > MAX_REQUEST_ID_CHARACTERS:
        raise OperationFailed(
            Reason.BAD_ARGUMENTS,
            f"request_id: expected at most {MAX_REQUEST_ID_CHARACTERS} characters, got {len(key.request_id)}",
        )
    if not 0 <= key.start <= key.end:
        raise OperationFailed(Reason.BAD_ARGUMENTS, f"expected 0 <= start <= end, got {key.start} and {key.end}")


def whole(tokens: int) -> int:
    """Return the number of tokens rounded down to whole chunks."""
    return tokens - tokens % CHUNK_TOKENS
