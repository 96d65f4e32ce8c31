"""Client library for engines: look up, acquire, reserve, and commit blocks.

    client = attach(socket, [Space(model="llama", block_bytes=2 << 20)], group="engine-0")
    hits = client.lookup(keys)
    with client.acquire(keys) as lease:
        lease.view(0)                      # zero-copy, read-only
    with client.reserve(keys, nbytes, tenant=salt) as reservation:
        for i in reservation.writable:
            reservation.view(i)[:] = ...
        reservation.commit()               # leaving the `with` block without a commit aborts

A missing, slow or restarting data plane causes a cache miss and an event, never an exception in the engine. Every wait
is bounded by `timeout_s`. Only wrong arguments raise ValueError; `attach` raises `AttachRefused` when a running data
plane refuses the engine. Threads may share a client. A client does not survive `fork`: the copy in the child is closed.

The package imports only numpy and the protocol; only `Lease.tensor` imports torch.
"""

from dataplane.client.attaching import attach
from dataplane.client.client import Client
from dataplane.client.events import AttachRefused, ClientEvent
from dataplane.client.leases import Lease
from dataplane.client.reservations import CommitResult, Reservation
from dataplane.protocol.codes import Code, ReserveOutcome
from dataplane.protocol.spaces import Space

__all__ = [
    "AttachRefused",
    "Client",
    "ClientEvent",
    "Code",
    "CommitResult",
    "Lease",
    "ReserveOutcome",
    "Reservation",
    "Space",
    "attach",
]
