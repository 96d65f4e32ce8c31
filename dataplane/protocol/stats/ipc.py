"""Message queues and object stores in shared memory."""

from typing import Annotated

import msgspec

from dataplane.protocol.stats.figures import counter, gauge


class IpcQueueStats(msgspec.Struct):
    """One message queue in shared memory. Counters are since it was created, and are what its processes wrote."""

    identity: str
    name: str
    writer: int
    """Pid; 0 if no writer runs."""
    readers: int
    """Readers that run, in shared memory."""
    capacity_bytes: int
    lag_bytes: int
    """Bytes that the slowest running reader has not read."""
    messages: int
    bytes: int
    waits: int
    """Times that the writer waited for readers."""
    dropped: int
    """Times that a slow reader was moved forward."""
    dead_readers: int
    messages_per_s: float = 0.0
    """Mean since the previous sample."""
    bytes_per_s: float = 0.0
    remote_readers: int = 0
    """Readers that were connected over ZeroMQ when the writer last sent a message."""


class IpcStoreStats(msgspec.Struct):
    """One object store in shared memory. Counters are since it was created, and are what its processes wrote."""

    identity: str
    name: str
    processes: int
    data_bytes: int
    """The budget."""
    objects: int | None
    """Objects that can be read; null if the store is too large to count them."""
    used_bytes: int | None
    hits: int
    misses: int
    puts: int
    put_bytes: int
    evictions: int
    dead_processes: int
    puts_per_s: float = 0.0
    """Mean since the previous sample."""
    bytes_per_s: float = 0.0
    """Bytes put."""


class IpcStats(msgspec.Struct):
    """Queues and stores in shared memory of the user that runs the data plane."""

    at: float
    """Unix seconds of the sample."""
    queues: list[IpcQueueStats] = []
    """Those with the most bytes per second, at most 16."""
    stores: list[IpcStoreStats] = []
    """Those with the most bytes per second, at most 16."""
    queues_total: Annotated[int, gauge("larder_ipc_queues")] = 0
    """Live message queues in shared memory of the data plane's user."""
    stores_total: Annotated[int, gauge("larder_ipc_stores")] = 0
    """Live object stores in shared memory of the data plane's user."""
    messages: Annotated[int, counter("larder_ipc_messages")] = 0
    """Messages of these queues while the data plane ran."""
    message_bytes: Annotated[int, counter("larder_ipc_message_bytes")] = 0
    """Bytes of messages of these queues while the data plane ran."""
    put_bytes: Annotated[int, counter("larder_ipc_put_bytes")] = 0
    """Bytes put into these stores while the data plane ran."""
    dead_peers: Annotated[int, counter("larder_ipc_dead_peers")] = 0
    """Readers of queues and processes of stores that ended without leaving, while the data plane ran."""
    problem: str = ""
    """Why the sample lacks some queues and stores; empty if it has all."""
