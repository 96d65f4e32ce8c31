"""A request that was understood, and the chunks that its key names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.keys import KEY_BYTES
from dataplane.transport.lmcache.chains import CHUNK_TOKENS, Chain, Chains
from dataplane.transport.lmcache.connections import Connection
from dataplane.transport.lmcache.failures import Failed, Reason
from dataplane.transport.lmcache.instances import Instance, Instances
from dataplane.transport.lmcache.messages import Key
from dataplane.transport.lmcache.transfers import Transfer
from dataplane.transport.lmcache.wire import Request

MAX_REQUEST_ID_CHARACTERS = 512

Reply = Callable[[bytes | None], None]
"""Sends the answer of an operation that ends later."""


class Later(Enum):
    """The answer comes by `Reply`."""

    LATER = 0


LATER = Later.LATER
Result = bytes | Later | None
"""The encoded result; None where its frame is left out."""


@dataclass(eq=False, slots=True)
class Asked:
    """One request."""

    peer: Connection
    operation: str
    now: float
    same: Chain | None
    """What the tokens of its key are, where they were left out."""
    request: Request
    began: float
    later: Callable[[Asked, bytes | None], None]
    slot: int = -1
    """Where it is written down while its answer is waited for."""
    answered: bool = False
    """Its answer came, where it comes later."""

    @property
    def reply(self) -> Reply:
        """For an operation that ends later."""
        return partial(self.later, self)


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks that a worker's key names, in its space."""

    instance: Instance
    transfer: Transfer
    tenant: str
    keys: bytes
    chain: bytes
    """Keys from the start of the request to the end of the chunks."""

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES

    @property
    def parent(self) -> bytes:
        """The key before the first one; empty at the start of a request."""
        before = len(self.chain) - len(self.keys)
        return self.chain[max(0, before - KEY_BYTES) : before]

    def first(self, count: int) -> Chunks:
        """So many of them."""
        keys = self.keys[: count * KEY_BYTES]
        space, start, _, _ = self.transfer
        transfer = Transfer(space, start, start + count * CHUNK_TOKENS, keys[-KEY_BYTES:])
        chain = self.chain[: len(self.chain) - len(self.keys) + len(keys)]
        return Chunks(self.instance, transfer, self.tenant, keys, chain)


def chunks_of(chains: Chains, instances: Instances, asked: Asked, key: Key, number: int) -> Chunks:
    """What the key of a worker names. Raises Failed, ProtocolError, TokenError."""
    check_key(key)
    instance = instances.of(number, asked.peer, asked.now)
    registered = instance.registered
    if (key.model_name, key.world_size) != (registered.model_name, registered.world_size):
        raise Failed(
            Reason.BAD_ARGUMENTS,
            f"worker {number} is registered for {registered.model_name[:64]!r} of {registered.world_size}, "
            f"got {key.model_name[:64]!r} of {key.world_size}",
        )
    if key.worker_id is None or not 0 <= key.worker_id < registered.world_size:
        raise Failed(
            Reason.BAD_ARGUMENTS,
            f"worker_id: expected 0 to {registered.world_size - 1}, got {key.worker_id}",
        )
    if key.start % CHUNK_TOKENS:
        raise Failed(Reason.BAD_ARGUMENTS, f"start: expected a multiple of {CHUNK_TOKENS}, got {key.start}")
    chain, count = chains.of(key, asked.same)
    end = whole(key.end)
    if end > whole(count):
        raise Failed(Reason.BAD_ARGUMENTS, f"end: expected at most {count}, got {key.end}")
    keys = chain.keys(key.start, end)
    if len(keys) > MAX_KEYS_PER_REQUEST * KEY_BYTES:
        raise Failed(Reason.BAD_ARGUMENTS, f"expected at most {MAX_KEYS_PER_REQUEST} chunks")
    transfer = Transfer(instance.spaces[key.worker_id], key.start, end, keys[-KEY_BYTES:])
    return Chunks(instance, transfer, key.cache_salt, keys, chain.keys(0, end))


def check_key(key: Key) -> None:
    """What must hold of every key. Raises Failed."""
    if len(key.request_id) > MAX_REQUEST_ID_CHARACTERS:
        raise Failed(
            Reason.BAD_ARGUMENTS,
            f"request_id: expected at most {MAX_REQUEST_ID_CHARACTERS} characters, got {len(key.request_id)}",
        )
    if not 0 <= key.start <= key.end:
        raise Failed(Reason.BAD_ARGUMENTS, f"expected 0 <= start <= end, got {key.start} and {key.end}")


def whole(tokens: int) -> int:
    """Tokens in whole chunks."""
    return tokens - tokens % CHUNK_TOKENS


def as_failed(error: Failed | ProtocolError) -> Failed:
    """A refusal of the core as a failure that is counted."""
    if isinstance(error, Failed):
        return error
    bad = error.code in (Code.BAD_SALT, Code.BAD_KEYS, Code.BAD_FIELD)
    ended = error.code in (Code.RESERVATION_EXPIRED, Code.UNKNOWN_RESERVATION, Code.INVALIDATED)
    reason = Reason.BAD_ARGUMENTS if bad else Reason.UNKNOWN_TRANSFER if ended else Reason.REFUSED
    return Failed(reason, f"{error.field}: {error.message}" if error.field else error.message)
