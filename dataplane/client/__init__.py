"""The engine's side: look up, acquire, reserve, commit.

    client = attach(socket, [Space(model="llama", block_bytes=2 << 20)], group="engine-0")
    hits = client.lookup(keys)
    with client.acquire(keys) as lease:
        lease.view(0)                      # zero-copy, read-only
    with client.reserve(keys, nbytes, tenant=salt) as reservation:
        for i in reservation.writable:
            reservation.view(i)[:] = ...
        reservation.commit()               # leaving the block without it aborts

A missing, slow or restarting data plane is a miss and an event, never an exception in the engine; every wait is
bounded by `timeout_s`. Only wrong arguments raise ValueError, and `attach` raises `AttachRefused` when a data plane
is there and says no. Clients may be shared by threads; they do not survive `fork` (the child's copy is closed).

Imports numpy and the protocol only; torch is imported by `Lease.tensor` alone.
"""

from dataplane.client.client import Client, attach
from dataplane.client.leases import Lease
from dataplane.client.link import AttachRefused, ClientEvent
from dataplane.client.reservations import Committed, Reservation
from dataplane.protocol.codes import Code, Outcome
from dataplane.protocol.spaces import Space

__all__ = [
    "AttachRefused",
    "Client",
    "ClientEvent",
    "Code",
    "Committed",
    "Lease",
    "Outcome",
    "Reservation",
    "Space",
    "attach",
]
