"""Streams of the emulated device end: closing and draining return from every thread, and no wait is without a bound."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dataplane.devices.runtime import DeviceError, DeviceStream
from tests.emulator import streams
from tests.emulator.device import PAGE_BYTES, EmulatedDevice

BOUND_S = 60.0


@pytest.fixture
def emulated() -> EmulatedDevice:
    return EmulatedDevice(["emulated-streams"])


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "WAIT_S", 0.05)
    monkeypatch.setattr(streams, "DRAIN_S", 0.2)


def stream_of(emulated: EmulatedDevice) -> DeviceStream:
    return emulated.stream(emulated.devices()[0])


def memory_of(emulated: EmulatedDevice) -> int:
    return emulated.allocate(emulated.devices()[0], PAGE_BYTES)


def finish_together(*calls: Callable[[], object]) -> None:
    """Run each call on a thread of its own, all at once. Fail when one raises or does not return in BOUND_S."""
    barrier = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            barrier.wait(BOUND_S)
            call()
        except (DeviceError, RuntimeError) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert not any(thread.is_alive() for thread in threads), "a call did not return"
    assert errors == []


def test_a_closed_stream_is_drained(emulated: EmulatedDevice) -> None:
    stream = stream_of(emulated)
    stream.close()
    finish_together(stream.drain, stream.close)  # type: ignore[attr-defined]


def test_threads_close_and_drain_a_stream_at_once(emulated: EmulatedDevice) -> None:
    address = memory_of(emulated)
    for _ in range(300):
        stream = stream_of(emulated)
        stream.clear(address, PAGE_BYTES)
        finish_together(stream.close, stream.drain, stream.close, stream.drain)  # type: ignore[attr-defined]


def test_memory_is_freed_while_another_thread_closes_streams(emulated: EmulatedDevice) -> None:
    """The free drains all streams that it saw, also those that are closed meanwhile."""
    for _ in range(100):
        streams = [stream_of(emulated) for _ in range(3)]
        address = emulated.allocate_host(PAGE_BYTES)
        finish_together(
            lambda streams=streams: [each.close() for each in streams],  # type: ignore[misc]
            lambda address=address: emulated.free_host(address),  # type: ignore[misc]
        )


def test_close_waits_for_the_work_that_was_put_before(emulated: EmulatedDevice) -> None:
    address, stream = memory_of(emulated), stream_of(emulated)
    event = emulated.event(emulated.devices()[0])
    for _ in range(200):
        stream.clear(address, PAGE_BYTES)
    stream.record(event)
    stream.close()
    assert event.query()


def test_a_record_that_a_closed_stream_refuses_leaves_no_waiter(emulated: EmulatedDevice) -> None:
    stream, event = stream_of(emulated), emulated.event(emulated.devices()[0])
    stream.close()
    with pytest.raises(DeviceError, match="it was closed"):
        stream.record(event)
    finish_together(event.synchronize)
    assert event.query()


def test_work_that_raises_something_else_ends_the_stream_and_not_its_waiters(
    emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    stream = stream_of(emulated)
    stream._put(lambda: [][0])  # type: ignore[attr-defined]
    finish_together(stream.drain)  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="it was closed"):
        stream.clear(memory_of(emulated), PAGE_BYTES)
    finish_together(stream.close)
    assert raised == [IndexError]


@pytest.mark.usefixtures("short_waits")
def test_a_copy_that_stays_stopped_fails(emulated: EmulatedDevice) -> None:
    address, stream = memory_of(emulated), stream_of(emulated)
    emulated.pace.stop_after(0)
    stream.copy(address, address, PAGE_BYTES)
    with pytest.raises(DeviceError, match=r"copy: cudaErrorTimeout \(the copy was not resumed within 0.05 s\)"):
        stream.synchronize()
    stream.close()


@pytest.mark.usefixtures("short_waits")
def test_an_event_that_is_never_recorded_fails_its_waiters(emulated: EmulatedDevice) -> None:
    event = emulated.event(emulated.devices()[0])
    event.begin()  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="wait for an event: cudaErrorTimeout"):
        event.synchronize()


@pytest.mark.usefixtures("short_waits")
def test_work_that_does_not_end_is_not_waited_for_without_a_bound(emulated: EmulatedDevice) -> None:
    stream, proceed = stream_of(emulated), threading.Event()
    stream._put(lambda: proceed.wait(BOUND_S) and None)  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="wait for a stream: cudaErrorTimeout"):
        stream.drain()  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="close a stream: cudaErrorTimeout"):
        stream.close()
    proceed.set()
    stream.close()
