"""What the handlers of all operations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataplane.copies.copying import CopyThreads
from dataplane.copies.gpu_copies import GpuCopyService
from dataplane.core.inprocess import InProcess
from dataplane.gateways.lmcache.failures import OperationFailed, as_failed
from dataplane.gateways.lmcache.handlers.chains import RequestChains
from dataplane.gateways.lmcache.handlers.counters import Counters
from dataplane.gateways.lmcache.handlers.requests import Chunks, GatewayRequest, chunks_of
from dataplane.gateways.lmcache.handlers.sessions import LookupSessions
from dataplane.gateways.lmcache.handlers.tier_waits import Later
from dataplane.gateways.lmcache.wire.messages import Key
from dataplane.gateways.lmcache.workers.instances import Instances
from dataplane.gateways.lmcache.workers.named_pool import NamedPool
from dataplane.protocol.codes import ProtocolError


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The core, the workers and the state of one gateway."""

    cache: InProcess
    pool: NamedPool
    instances: Instances
    sessions: LookupSessions
    chains: RequestChains
    copying: CopyThreads
    counters: Counters
    clock: Callable[[], float]
    later: Later
    """Calls a function on the loop after so many seconds."""
    gpu_copies: GpuCopyService | None
    allow_clear: bool

    def chunks_of(self, request: GatewayRequest, key: Key, number: int) -> Chunks:
        """Return the chunks that a worker's key names. Raise OperationFailed, ProtocolError or TokenError."""
        return chunks_of(self.chains, self.instances, request, key, number)

    def failed(self, request: GatewayRequest, error: OperationFailed | ProtocolError) -> bytes | None:
        """Count a failure after the handler of the request has returned, and return the answer to it."""
        failed = as_failed(error)
        self.counters.failed(request.operation.name, failed.reason, str(failed), self.clock())
        return request.operation.failure
