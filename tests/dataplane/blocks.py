"""Blocks that an engine stores and reads, with bytes that follow from their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dataplane.client import Client, attach
from dataplane.protocol.layout import H_CLOSED
from dataplane.protocol.spaces import Space
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, contents, wait_for

PAGE_BYTES = 4096


def connect(plane: Plane, *spaces: Space, **options: Any) -> Client:
    return attach(plane.socket, list(spaces) or [make.space()], **{"timeout_s": 30, **options})


def store(client: Client, chain: Sequence[bytes], nbytes: int = PAGE_BYTES, tenant: str = "", **where: Any) -> int:
    """Return the number of blocks that were published."""
    with client.reserve(chain, nbytes, tenant=tenant, **where) as reservation:
        data = contents(chain, nbytes)
        for at in reservation.writable:
            reservation.view(at)[:] = data[at]
        return reservation.commit().blocks


def read(client: Client, chain: Sequence[bytes], nbytes: int = PAGE_BYTES) -> int:
    """Return the number of leading blocks that are there, each with the right bytes."""
    with client.acquire(chain) as lease:
        assert [bytes(lease.view(at)) for at in range(len(lease))] == contents(chain, nbytes)[: len(lease)]
        return len(lease)


def connected(client: Client) -> bool:
    """Whether the client is attached to a data plane that still runs: a look-up notices the end of one a tenth of a
    second later."""
    client.receive()
    client.lookup(make.keys(1))
    return client.connected


def attached_again(client: Client) -> None:
    wait_for(lambda: connected(client), "the client attaches again")


def lost(client: Client) -> None:
    """Wait until the client knows that the data plane ended: until then it counts as connected."""
    wait_for(lambda: not connected(client), "the loss is noticed")


def kill(plane: Plane, client: Client) -> None:
    """Kill the data plane, not its holder, and wait until the client knows."""
    plane.kill_process()
    lost(client)


@contextmanager
def cached(plane: Plane, blocks: int = 3) -> Iterator[tuple[Client, Callable[[], bool]]]:
    """An engine that has stored blocks, and a function that returns whether their memory is marked as released."""
    with connect(plane) as client:
        assert store(client, make.keys(blocks)) == blocks
        attachment = client._memory.current
        yield client, lambda: bool(attachment.index.header[H_CLOSED])


def store_alone(plane: Plane, blocks: int = 3) -> None:
    with cached(plane, blocks):
        pass


def read_alone(plane: Plane, blocks: int = 3) -> int:
    with connect(plane) as client:
        return read(client, make.keys(blocks))
