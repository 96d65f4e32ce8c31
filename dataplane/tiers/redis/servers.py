"""The servers of a tier: which one holds a key, idle connections, and backoff from a server that does not answer."""

import contextlib
import threading
import time
from binascii import crc_hqx
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dataplane.tiers.redis.connection import BlockConnection, server
from dataplane.tiers.redis.parameters import Address, RedisParameters, port_number
from dataplane.tiers.redis.resp import ErrorReply
from dataplane.tiers.tier import TierError

_SLOTS = 16_384
_MIN_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 2.0


class _Failure(NamedTuple):
    sentence: str
    failures: int
    retry_at: float


class RedisServers:
    """Connections to the servers, and the map of a cluster's slots. Thread-safe."""

    def __init__(self, parameters: RedisParameters) -> None:
        self._parameters = parameters
        self._seeds = parameters.addresses()
        self._lock = threading.Lock()
        self._idle: dict[Address, list[BlockConnection]] = {}
        self._failures: dict[Address, _Failure] = {}
        self._slots: list[Address] = []
        self._addresses: list[Address] = []
        self._closed = False

    def holders(self, keys: Sequence[bytes], deadline: float) -> list[Address]:
        """Return the server of each key. Raises TierError, also after `close`, and TimeoutError."""
        if self._closed:
            raise TierError("the tier is closed")
        if not self._parameters.cluster:
            return [self._seeds[0]] * len(keys)
        slots = self._slots or self._read_slots(deadline)
        return [slots[crc_hqx(key, 0) % _SLOTS] for key in keys]  # names of values have no hash tags

    def addresses(self, deadline: float) -> list[Address]:
        """Return all servers that hold keys. Raises TierError, TimeoutError."""
        if not self._parameters.cluster:
            return self._seeds[:1]
        return sorted(set(self._slots or self._read_slots(deadline)))

    def last_addresses(self) -> set[Address]:
        """Return the servers that held keys when the cluster was last queried; none without a cluster."""
        return set(self._addresses)

    def _read_slots(self, deadline: float) -> list[Address]:
        """Ask the cluster which server holds which slot. Raises TierError if no server can tell, TimeoutError."""
        failure = TierError("no server of the cluster answers")
        for address in dict.fromkeys([*self._addresses, *self._seeds]):
            try:
                with self.connected(address, deadline) as connection:
                    reply = connection.execute(b"CLUSTER", b"SLOTS", deadline=deadline)
                    slots = _slot_map(reply, address)
                self._slots, self._addresses = slots, sorted(set(slots))
                return slots
            except TierError as error:
                failure = error
            except (ConnectionError, ValueError) as error:
                failure = TierError(f"{server(address)}: cannot read the slots of the cluster: {error}")
        raise failure

    def forget(self) -> None:
        """Ask the cluster again before the next call: a server was lost or keys have moved."""
        self._slots = []

    @contextlib.contextmanager
    def connected(self, address: Address, deadline: float) -> Iterator[BlockConnection]:
        """Lend a connection. It is kept for the next call, unless the block raises. Raises TierError, TimeoutError."""
        connection = self._idle_connection(address) or self._connect(address, deadline)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._closed:
                self._idle.setdefault(address, []).append(connection)
                return
        connection.close()

    def drop_idle(self, address: Address) -> None:
        """Close the idle connections to a server: one of them was lost, so the others probably are, too."""
        with self._lock:
            idle = self._idle.pop(address, [])
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close the idle connections; those that are lent are closed when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _idle_connection(self, address: Address) -> BlockConnection | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _connect(self, address: Address, deadline: float) -> BlockConnection:
        """Connect, but not within the backoff from the last failure. Raises its TierError then."""
        failure = self._failures.get(address)
        if self._closed:
            raise TierError("the tier is closed")
        if failure and time.monotonic() < failure.retry_at:
            raise TierError(failure.sentence)
        try:
            connection = BlockConnection(address, self._parameters, deadline)
        except TierError as error:
            failures = failure.failures + 1 if failure else 0
            backoff = min(_MIN_BACKOFF_S * 2 ** min(failures, 10), _MAX_BACKOFF_S)
            self._failures[address] = _Failure(str(error), failures, time.monotonic() + backoff)
            raise
        self._failures.pop(address, None)
        return connection


def _slot_map(reply: object, queried: Address) -> list[Address]:
    """Return the server of each slot from the reply to CLUSTER SLOTS. Raises ValueError, TierError."""
    if isinstance(reply, ErrorReply):
        raise TierError(f"{server(queried)}: expected a server of a Redis Cluster, got a server without one")
    slots: list[Address | None] = [None] * _SLOTS
    if not isinstance(reply, list):
        raise ValueError("expected a list of slots")
    for row in reply:
        match row:
            case [int(first), int(last), [host, int(port), *_], *_] if 0 <= first <= last < _SLOTS:
                name = host.decode("ascii", errors="replace") if isinstance(host, bytes) else ""
                slots[first : last + 1] = [(name or queried[0], port_number(port))] * (last - first + 1)
            case _:
                raise ValueError("expected rows of first slot, last slot and servers")
    complete = [address for address in slots if address is not None]
    if len(complete) != _SLOTS:
        raise TierError(f"{server(queried)}: {_SLOTS - len(complete)} slots of the cluster have no server")
    return complete
