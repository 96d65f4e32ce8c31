"""What a copy of an engine does not wait for while GPU copies are opened, closed, requested and reported."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dataplane.protocol import engine as wire
from dataplane.protocol.codec import encode
from tests.dataplane.plane import wait_for
from tests.gpu.gpu_copy_plane import GpuCopyPlane
from tests.gpu.test_gpu_copies import (
    KEYS,
    NEW,
    OLD,
    GpuCopySetup,
    exporter,
    later,
    make_engine,
    make_plane,
    patient,
    with_gpu_copies,
)

__all__ = ["exporter", "make_engine", "make_plane", "patient", "with_gpu_copies"]
WAIT_S = 60.0


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run in a thread; what is given waits for its answer, and fails when there is none."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()

    def answer() -> Any:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "it waits"
        return answers[0]

    yield answer
    thread.join(WAIT_S)


@pytest.fixture
def slow_open(
    with_gpu_copies: GpuCopySetup, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """Opening an extent sets the first event, and waits for the second one."""
    _, engine, _ = with_gpu_copies
    opening, may_open = threading.Event(), threading.Event()
    runtime = engine.machine.runtime
    real = runtime.open

    def slow(handle: Any) -> Any:
        opening.set()
        may_open.wait(2 * WAIT_S)
        return real(handle)

    monkeypatch.setattr(runtime, "open", slow)
    monkeypatch.setattr("dataplane.client.gpu_copies.EXTENT_TIMEOUT_S", 0.2)
    return opening, may_open


def give_up(plane: GpuCopyPlane) -> None:
    plane.table.hide(np.arange(3))
    plane.extents.clear()
    plane.list_extents()


def test_a_load_begins_and_ends_while_another_thread_s_request_has_no_answer(with_gpu_copies: GpuCopySetup) -> None:
    _, engine, content = with_gpu_copies
    assert engine.load() == (True, 3)
    engine.fill(3)
    lease = engine.client.acquire(KEYS[:3])
    begun, over = threading.Event(), threading.Event()

    def request() -> None:
        with engine.client._link.lock:  # as a request has it until its answer
            begun.set()
            over.wait(2 * WAIT_S)

    def load() -> tuple[bool, int]:
        copy = engine.cache.load(lease, NEW)
        return copy.finish(), copy.gpu_copies

    with beside(request):
        assert begun.wait(WAIT_S)
        with beside(load) as loaded:
            try:
                assert loaded() == (True, 3)
            finally:
                over.set()
    assert engine.holds(content, OLD, NEW)


def test_a_load_begins_while_an_extent_is_closed_behind_another_copy(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, _ = with_gpu_copies
    assert engine.load() == (True, 3)
    stream = engine.machine.runtime.stream(engine.machine.device)
    reached = engine.machine.emulator.pace.stop_after(1 << 14)
    stream.copy(engine.address, engine.address + (1 << 16), 1 << 16)
    assert reached.wait(WAIT_S)
    give_up(plane)
    lease = engine.client.acquire(KEYS[:1])
    with beside(lambda: engine.cache.load(lease, NEW[:16])) as begun:
        try:
            load = begun()
            assert plane.gpu_copy_requests[-1].closed == []
        finally:
            engine.machine.emulator.pace.resume()
    assert load.finish()
    assert load.gpu_copies == 0
    stream.close()
    wait_for(lambda: engine.opened() == 0, "it is closed")
    wait_for(lambda: plane.gpu_copy_requests[-1].closed == [5], "it is reported")


def test_a_load_does_not_wait_for_an_extent_that_takes_long_to_open(
    with_gpu_copies: GpuCopySetup, slow_open: tuple[threading.Event, threading.Event]
) -> None:
    plane, engine, content = with_gpu_copies
    opening, may_open = slow_open

    def begun() -> bool:
        assert engine.load() == (True, 0)
        return opening.is_set()

    with beside(lambda: wait_for(begun, "it is being opened")) as done:
        try:
            done()
        finally:
            may_open.set()
    assert engine.poisoned(NEW)
    wait_for(lambda: engine.load() == (True, 3), "it is open")
    assert engine.holds(content, OLD, NEW)
    assert [each.extents for each in plane.gpu_copy_requests] == [[], [5]]


def test_an_extent_withdrawn_while_it_is_opened_is_closed_and_reported_once(
    with_gpu_copies: GpuCopySetup, slow_open: tuple[threading.Event, threading.Event]
) -> None:
    plane, engine, _ = with_gpu_copies
    opening, may_open = slow_open
    wait_for(lambda: engine.load()[0] and opening.is_set(), "it is being opened")
    give_up(plane)
    assert engine.load() == (True, 0)
    assert [each.closed for each in plane.gpu_copy_requests] == [[], []]
    may_open.set()
    wait_for(lambda: [each.closed for each in plane.gpu_copy_requests] == [[], [], [5]], "it is reported")
    assert engine.opened() == 0


def test_a_client_that_detaches_waits_for_closing_extents(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, _ = with_gpu_copies
    assert engine.load() == (True, 3)
    stream = engine.machine.runtime.stream(engine.machine.device)
    reached = engine.machine.emulator.pace.stop_after(1 << 14)
    stream.copy(engine.address, engine.address + (1 << 16), 1 << 16)
    assert reached.wait(WAIT_S)
    with beside(engine.client.close) as closed:
        wait_for(lambda: engine.client._gpu_copies[engine.machine.device.uuid]._ended, "it closes")
        assert not any(isinstance(each, wire.Detach) for each in plane.requests)
        engine.machine.emulator.pace.resume()
        closed()
    assert engine.opened() == 0
    closing, detach = plane.requests[-2:]
    assert (closing.closed, type(detach)) == ([5], wire.Detach)
    stream.close()


def test_a_client_closed_during_a_load_does_not_detach(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, content = with_gpu_copies
    assert engine.load() == (True, 3)
    engine.fill(3)
    reached = engine.machine.emulator.pace.stop_after(100_000)
    load = engine.cache.load(engine.client.acquire(KEYS[:3]), NEW)
    assert reached.wait(WAIT_S)
    engine.client.close()
    assert engine.opened() == 1
    engine.machine.emulator.pace.resume()
    assert load.finish()
    assert engine.holds(content, OLD, NEW)
    wait_for(lambda: engine.opened() == 0, "it is closed")
    assert not any(isinstance(each, wire.Detach) for each in plane.requests)


def test_an_unanswered_request_is_repeated_and_its_late_answer_is_accepted(
    with_gpu_copies: GpuCopySetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, engine, content = with_gpu_copies
    change, plane.change = plane.change, lambda answer, fds: None
    monkeypatch.setattr("dataplane.client.gpu_copies.EXTENT_TIMEOUT_S", 0.0)
    for _ in range(3):
        assert engine.load() == (True, 0)
    wait_for(lambda: len(plane.gpu_copy_requests) == 2, "it is asked")
    plane.change = change
    later(monkeypatch)
    wait_for(lambda: engine.load() == (True, 3), "it is asked again")
    assert [each.extents for each in plane.gpu_copy_requests] == [[], [5], [5]]
    late = wire.GpuCopiesMapped(plane.gpu_copy_requests[1].id, [plane.extents[5]])
    socket.send_fds(plane._open[-1], [encode(late)], [])
    engine.hear()
    assert engine.load() == (True, 3)
    assert engine.holds(content, OLD, NEW)
    assert engine.heard == ["attached"]
    give_up(plane)
    wait_for(lambda: engine.load() == (True, 0) and plane.gpu_copy_requests[-1].closed == [5], "it is reported")
    assert engine.opened() == 0


def test_a_load_that_cannot_begin_releases_its_leases(
    with_gpu_copies: GpuCopySetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, engine, _ = with_gpu_copies
    assert engine.load() == (True, 3)

    def fails() -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(engine.cache, "record", fails)
        with pytest.raises(MemoryError):
            engine.cache.load(engine.client.acquire(KEYS[:3]), NEW)
    give_up(plane)
    assert engine.load() == (True, 0)
    wait_for(lambda: engine.opened() == 0, "it is closed")
    wait_for(lambda: plane.gpu_copy_requests[-1].closed == [5], "it is reported")
