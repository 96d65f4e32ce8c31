"""MD5 digests of blocks in the memory of engines for which this node copies, so that operators can check whether the
stored bytes came back. The memory is read off the loop, like copies."""

from __future__ import annotations

from collections.abc import Callable

from dataplane.copies.copying import CopyFailed, CopyThreads
from dataplane.gateways.lmcache.workers.instances import Instances
from dataplane.gateways.lmcache.workers.registry import Instance, Registry
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.messages import ControlRefused, ControlReply
from dataplane.protocol.control.verification import DigestEngine, EngineDigests
from dataplane.protocol.spaces import LMCACHE

MAX_BLOCKS = 65_536

Reply = Callable[[ControlReply], None]


class Digests:
    """Answer `DigestEngine` messages."""

    def __init__(self, registry: Registry, instances: Instances, copying: CopyThreads) -> None:
        self._registry = registry
        self._instances = instances
        self._copying = copying

    def begin(self, message: DigestEngine, reply: Reply) -> None:
        """Start to read the blocks, and reply when done. Raise ProtocolError on failure."""
        instance = self._instance(message)
        copier = instance.chunk_layout.copier
        if copier is None:
            raise ProtocolError(
                Code.UNSUPPORTED,
                f"worker {message.instance} copies by itself, so this node cannot read its memory",
                "instance",
            )
        if not 1 <= len(message.blocks) <= MAX_BLOCKS:
            raise ProtocolError(
                Code.BAD_FIELD, f"expected 1 to {MAX_BLOCKS} blocks, got {len(message.blocks)}", "blocks"
            )
        if not 1 <= message.chunk_blocks <= MAX_BLOCKS:
            raise ProtocolError(
                Code.BAD_FIELD, f"expected 1 to {MAX_BLOCKS}, got {message.chunk_blocks}", "chunk_blocks"
            )
        chunks = [
            message.blocks[at : at + message.chunk_blocks] for at in range(0, len(message.blocks), message.chunk_blocks)
        ]
        digests: list[list[str]] = []

        def work() -> None:
            digests.extend(copier.digests(chunks, layerwise=message.layerwise))

        def done(failed: CopyFailed | None) -> None:
            self._instances.copy_ended(instance)
            if failed is None:
                reply(EngineDigests(message.nonce, digests))
            else:
                reply(ControlRefused("bad_field", str(failed), "blocks", message.nonce))

        instance.copying += 1
        if not self._copying.submit(work, done):
            self._instances.copy_ended(instance)
            raise ProtocolError(Code.UNAVAILABLE, "too many copies are queued: try again")

    def _instance(self, message: DigestEngine) -> Instance:
        if message.gateway == LMCACHE:
            for instance in self._registry:
                if instance.registered.instance == message.instance:
                    return instance
        raise ProtocolError(Code.BAD_FIELD, f"no worker {message.instance} is registered", "instance")
