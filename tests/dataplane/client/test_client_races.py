"""Every call of the client beside `close`, the end of the data plane and a fork, at every place: none raises.

What a lease or a reservation gives out may be refused with ValueError if another thread has ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count

import numpy as np
import pytest

from dataplane.client import Lease, Reservation, Space, attach
from tests.dataplane import factories as make
from tests.dataplane.blocks import store
from tests.dataplane.plane import Plane
from tests.interleaving import STEP_S, Pair, in_a_child, undocumented
from tests.run_marks import short_folder
from tests.sizes import FULL

CHAIN = make.keys(2)
FOLDER = "dataplane/client"
PAGE_BYTES = 80_000
SPACE = Space(model="races", block_bytes=PAGE_BYTES, block_tokens=16)
numbers = count()


class Engine:
    """A client with an open lease and an open reservation."""

    def __init__(self, plane: Plane) -> None:
        self.client = attach(plane.socket, [SPACE], timeout_s=30, on_event=lambda event: None, verify="always")
        store(self.client, CHAIN, PAGE_BYTES)
        self.lease = self.client.acquire(CHAIN)
        self.reservation = self.client.reserve(self.new_keys(), PAGE_BYTES)
        assert (len(self.lease), len(self.reservation.writable)) == (2, 2)

    def new_keys(self) -> list[bytes]:
        return make.keys(2, ("races", next(numbers)))

    def lose(self) -> None:
        """End the connection, as the death of the data plane does."""
        with self.client._link.lock:
            self.client._link.drop("lost")


@pytest.fixture(scope=lambda fixture_name, config: "function" if FULL else "module")
def start() -> Iterator[Callable[[], Engine]]:
    """Start engines of one data plane. Its pool has room for all reservations: what this process may still write to is
    quarantined until it ends."""
    with short_folder() as folder:
        settings = {"pool_bytes": "4GiB", "dataplane__segment_bytes": "64MiB", "dataplane__max_clients": "16384"}
        plane = Plane(folder, settings).start()
        try:
            yield partial(Engine, plane)
            assert plane.alive, plane.log()
        finally:
            plane.kill()


BUFFER = np.zeros(2 * PAGE_BYTES, np.uint8)
PIECES = BUFFER.ctypes.data + np.arange(2, dtype=np.int64)[:, None] * PAGE_BYTES
SIZES = np.array([PAGE_BYTES], np.int64)
CALLS: dict[str, Callable[[Engine], object]] = {
    "connected": lambda engine: engine.client.connected,
    "mapped": lambda engine: engine.client.mapped,
    "epoch": lambda engine: engine.client.epoch,
    "hint_max_s": lambda engine: engine.client.hint_max_s,
    "knows_sessions": lambda engine: engine.client.knows_sessions,
    "lookup": lambda engine: engine.client.lookup(CHAIN),
    "lookup_tiers": lambda engine: engine.client.lookup_tiers(CHAIN),
    "prefetch": lambda engine: engine.client.prefetch(CHAIN),
    "cancel_prefetch": lambda engine: engine.client.cancel_prefetch(CHAIN),
    "hold": lambda engine: engine.client.hold(CHAIN).release(),
    "acquire": lambda engine: engine.client.acquire(CHAIN).release(),
    "reserve": lambda engine: engine.client.reserve(engine.new_keys(), PAGE_BYTES).abort(),
    "map_tiers": lambda engine: engine.client.map_tiers(0.01),
    "maintain": lambda engine: engine.client.maintain(),
    "close": lambda engine: engine.client.close(),
    "copy_to": lambda engine: engine.lease.copy_to(BUFFER),
    "commit": lambda engine: engine.reservation.commit(),
    "abort": lambda engine: engine.reservation.abort(),
}
OTHERS: dict[str, Callable[[Engine], object]] = {"close": lambda engine: engine.client.close(), "lose": Engine.lose}
LEASE: dict[str, Callable[[Lease], object]] = {
    "array": lambda lease: lease.array(1),
    "view": lambda lease: lease.view(1),
    "memory": lambda lease: lease.memory(1),
    "blocks_between": lambda lease: lease.blocks_between(0, 2),
    "copy_to": lambda lease: lease.copy_to(BUFFER),
    "copy_pieces_to": lambda lease: lease.copy_pieces_to(PIECES, SIZES),
    "nbytes": lambda lease: lease.nbytes(1),
    "len": len,
    "release": Lease.release,
}
RESERVATION: dict[str, Callable[[Reservation], object]] = {
    "array": lambda reservation: reservation.array(1),
    "view": lambda reservation: reservation.view(1),
    "memory": lambda reservation: reservation.memory(1),
    "copy_from": lambda reservation: reservation.copy_from(BUFFER),
    "copy_pieces_from": lambda reservation: reservation.copy_pieces_from(PIECES, SIZES),
    "commit": Reservation.commit,
    "abort": Reservation.abort,
}


def close(engine: Engine) -> None:
    for end in (engine.lease.release, engine.reservation.abort, engine.client.close):
        end()


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", CALLS)
def test_no_call_raises_beside_another_one(start: Callable[[], Engine], name: str, other: str) -> None:
    @contextmanager
    def pair(*, reverse: bool) -> Iterator[Pair]:
        with ExitStack() as ending:
            engine = start()
            ending.callback(close, engine)
            calls = partial(CALLS[name], engine), partial(OTHERS[other], engine)
            yield Pair(*reversed(calls)) if reverse else Pair(*calls)

    short = name in ("connected", "mapped", "epoch", "hint_max_s", "knows_sessions")
    for reverse in (False, True):
        found = undocumented(
            partial(pair, reverse=reverse), FOLDER, (), every=9 if short else 45, opcodes=short and not reverse
        )
        assert not list(found)


@pytest.mark.parametrize("name", LEASE)
def test_a_call_of_a_lease_beside_its_release(start: Callable[[], Engine], name: str) -> None:
    @contextmanager
    def pair() -> Iterator[Pair]:
        yield Pair(partial(LEASE[name], lease := engine.client.acquire(CHAIN)), lease.release)

    engine = start()
    try:
        assert not list(undocumented(pair, FOLDER, (ValueError,), every=27, opcodes=True))
    finally:
        close(engine)


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("name", RESERVATION)
def test_a_call_of_a_reservation_beside_its_end(start: Callable[[], Engine], name: str, end: str) -> None:
    published: list[int] = []

    @contextmanager
    def pair() -> Iterator[Pair]:
        reservation = engine.client.reserve(keys := engine.new_keys(), PAGE_BYTES)
        yield Pair(partial(RESERVATION[name], reservation), partial(RESERVATION[end], reservation))
        published.append(engine.client.lookup(keys))

    engine = start()
    try:
        assert not list(undocumented(pair, FOLDER, (ValueError,), every=75, opcodes=True))
    finally:
        close(engine)
    assert set(published) <= {0, 2}


@pytest.mark.parametrize("name", CALLS)
def test_a_forked_child_has_a_closed_client_whatever_a_thread_of_the_parent_does(
    start: Callable[[], Engine], name: str
) -> None:
    def check() -> None:
        for call in CALLS.values():
            with suppress(ValueError):  # the lease is the parent's
                call(engine)
        for lease in LEASE.values():
            with suppress(ValueError):
                lease(engine.lease)
        assert not engine.client.connected

    @contextmanager
    def pair() -> Iterator[Pair]:
        yield Pair(partial(CALLS[name], engine), partial(in_a_child, check))

    engine = start()
    try:
        assert not list(undocumented(pair, FOLDER, (), every=75, meanwhile_s=STEP_S))
    finally:
        close(engine)
