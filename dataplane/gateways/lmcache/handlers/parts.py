"""What the handlers of all operations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataplane.copies.copying import CopyThreads
from dataplane.copies.gpu_copies import GpuCopyService
from dataplane.core.inprocess import InProcess
from dataplane.gateways.lmcache.failures import OperationFailed, Reason, as_failed
from dataplane.gateways.lmcache.handlers.chains import RequestChains
from dataplane.gateways.lmcache.handlers.counters import Counters
from dataplane.gateways.lmcache.handlers.requests import Chunks, GatewayRequest, check_key, whole
from dataplane.gateways.lmcache.handlers.sessions import LookupSessions
from dataplane.gateways.lmcache.handlers.tier_waits import Later
from dataplane.gateways.lmcache.wire.messages import Key, session_of
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.gateways.lmcache.workers.instances import Instances
from dataplane.gateways.lmcache.workers.registry import Registry
from dataplane.gateways.lmcache.workers.transfers import Transfer
from dataplane.memory.named import NamedFile
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.keys import KEY_BYTES, TokenError


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The core, the workers and the state of one gateway."""

    cache: InProcess
    pool: NamedFile
    """The named segment, which clients map."""
    expect_worker: Callable[[], None]
    """Keeps memory of the segment ready for a worker that registers, and its pages in place."""
    registry: Registry
    instances: Instances
    sessions: LookupSessions
    chains: RequestChains
    copying: CopyThreads
    counters: Counters
    clock: Callable[[], float]
    later: Later
    """Calls a function on the loop after so many seconds."""
    gpu_copies: GpuCopyService
    allow_clear: bool

    def chunks_of(self, request: GatewayRequest, key: Key, number: int) -> Chunks:
        """Return the chunks that a worker's key names. Raise OperationFailed, ProtocolError or TokenError."""
        check_key(key)
        instance = self.instances.of(number, request.peer, request.now)
        registered = instance.registered
        if (key.model_name, key.world_size) != (registered.model_name, registered.world_size):
            raise OperationFailed(
                Reason.BAD_ARGUMENTS,
                f"worker {number} is registered for {registered.model_name[:64]!r} of {registered.world_size}, "
                f"got {key.model_name[:64]!r} of {key.world_size}",
            )
        if key.worker_id is None or not 0 <= key.worker_id < registered.world_size:
            raise OperationFailed(
                Reason.BAD_ARGUMENTS, f"worker_id: expected 0 to {registered.world_size - 1}, got {key.worker_id}"
            )
        if key.start % CHUNK_TOKENS:
            raise OperationFailed(
                Reason.BAD_ARGUMENTS, f"start: expected a multiple of {CHUNK_TOKENS}, got {key.start}"
            )
        chain, count = self.chains.of(key, request.same)
        end = whole(key.end)
        if end > whole(count):
            raise OperationFailed(Reason.BAD_ARGUMENTS, f"end: expected at most {count}, got {key.end}")
        keys = chain.keys(key.start, end)
        if len(keys) > MAX_KEYS_PER_REQUEST * KEY_BYTES:
            raise OperationFailed(Reason.BAD_ARGUMENTS, f"expected at most {MAX_KEYS_PER_REQUEST} chunks")
        transfer = Transfer(instance.spaces[key.worker_id], key.start, end, keys[-KEY_BYTES:])
        return Chunks(instance, transfer, key.cache_salt, keys, chain.keys(0, end), session_of(key))

    def failed(self, request: GatewayRequest, error: OperationFailed | ProtocolError | TokenError) -> bytes | None:
        """Count a failure, and return the answer to it."""
        failed, name = as_failed(error), request.operation.name
        self.counters.failed(name, failed.reason, str(failed), self.clock())
        request.client.note_failed(name, failed)
        return request.operation.failure
