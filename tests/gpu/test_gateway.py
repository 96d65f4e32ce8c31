"""Engines of a device whose caches the data plane copies: every byte, in order behind their events, and nothing left
open when they are gone. Their memory is opened beside everything else that a gateway does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dataplane.devices.runtime import Handle, OpenedMemory
from tests.dataplane.plane import wait_for
from tests.gpu.layouts import ORDERS
from tests.gpu.machines import Machine, Other
from tests.gpu.pool import Gateway
from tests.lmcache.gateway import PlainPool

OLD = [*range(1, 17), *range(70, 54, -1)]
NEW = [*range(40, 56), 17, 16, 15, 14, *range(20, 32)]
CYCLES = int(os.environ.get("LARDER_TEST_GPU_CYCLES", "16"))


def digest(other: Other, blocks: list[int]) -> str:
    return other.ask(do="blocks", numbers=blocks)["digest"]


@pytest.mark.parametrize("name", ORDERS)
def test_chunks_come_back_into_other_blocks(gateway: Gateway, name: str) -> None:
    other = gateway.engine(layout=name)
    expected = digest(other, OLD)
    assert gateway.store(other, OLD)
    before = other.ask(do="blocks", numbers=NEW)["others"]
    assert gateway.retrieve(other, NEW)
    assert other.ask(do="blocks", numbers=NEW) == {"digest": expected, "others": before}
    assert gateway.devices.named_is_pinned


@pytest.mark.parametrize(("skip", "unchanged"), [(16, 1), (100, 6), (256, 16), (10**6, 32)])
def test_blocks_that_others_read_are_left_alone(gateway: Gateway, skip: int, unchanged: int) -> None:
    other = gateway.engine()
    assert gateway.store(other, OLD)
    stored = digest(other, OLD[unchanged:])
    other.ask(do="fill", seed=2)
    before = other.ask(do="blocks", numbers=NEW[unchanged:])["others"]
    assert gateway.retrieve(other, NEW, skip=skip)
    assert other.ask(do="blocks", numbers=NEW[unchanged:]) == {"digest": stored, "others": before}


def test_a_pool_that_cannot_be_pinned_is_copied_through_a_staging_buffer(
    emulated: Machine, make_gateway: Callable[..., Gateway]
) -> None:
    gateway = make_gateway(emulated, PlainPool)  # its memory begins anywhere
    gateway.pool.bytes = bytearray(64 << 20)
    other = gateway.engine()
    expected = digest(other, OLD)
    assert gateway.store(other, OLD)
    assert gateway.retrieve(other, NEW)
    assert digest(other, NEW) == expected


def test_two_engines_of_one_form_share_their_blocks(gateway: Gateway) -> None:
    one, two = gateway.engine(seed=1), gateway.engine(seed=2)
    assert len(gateway.server.registry) == 2
    expected = digest(one, OLD)
    assert gateway.store(one, OLD)
    assert gateway.retrieve(two, NEW)
    assert digest(two, NEW) == expected


def test_engines_that_copy_at_once_keep_their_own_bytes(gateway: Gateway) -> None:
    others = [gateway.engine(seed) for seed in range(3)]
    expected = [digest(other, OLD) for other in others]
    for do, blocks in (("store", OLD), ("retrieve", NEW)):
        for name, other in enumerate(others):
            other.tell(do=do, chunks=2, blocks=blocks, name=name)
        assert [gateway.hear(other) for other in others] == [{"result": True}] * 3
    assert [digest(other, NEW) for other in others] == expected


def test_memory_that_is_not_there_is_refused_and_nothing_stays_open(gateway: Gateway) -> None:
    other = gateway.start()
    wrong: list[dict[str, Any]] = [
        {"nbytes": 1 << 40}, {"uuid": "00000000-0000-4000-8000-000000000000"}, {"body": "00" * 64}, {"body": "ff" * 64}
    ]  # fmt: skip
    for changes in wrong:
        gateway.connect(other, **changes)
        assert len(gateway.server.registry) == 0
        assert not gateway.store(other, OLD)
    assert gateway.connect(other, form="cuda_raw") == {"registered": True}, "the driver's own handle"
    assert gateway.store(other, OLD)
    gateway.ask(other, do="unregister")
    other.kill()
    if gateway.machine.kind == "emulated":  # a thread closes the engine's memory
        machine = gateway.machine
        gateway.until(lambda: not machine.runtime.memory_used(machine.device), "the engine's memory is closed")


class TestOrder:
    def test_a_copy_waits_for_the_engine_s_event_and_not_for_those_of_others(self, emulated_gateway: Gateway) -> None:
        gateway = emulated_gateway
        helper = gateway.start()
        event = helper.ask(do="pending")["event"]
        waiting, other = [gateway.engine() for _ in range(2)], gateway.engine()
        for name, each in enumerate(waiting):
            each.tell(do="store", chunks=1, blocks=OLD[:16], event=event, name=name)
        gateway.until(lambda: sum(each.copying for each in gateway.server.registry) == 2, "the copies are asked for")
        assert gateway.bench.pool.used_bytes
        assert gateway.store(other, OLD[:16], name=5)
        assert not any(gateway.heard(each) for each in waiting)
        helper.ask(do="resume")
        assert [gateway.hear(each) for each in waiting] == [{"result": True}] * 2

    def test_an_event_of_a_process_that_died_or_is_none_fails_the_copy_and_publishes_nothing(
        self, emulated_gateway: Gateway
    ) -> None:
        other, helper = emulated_gateway.engine(), emulated_gateway.start()
        event = helper.ask(do="pending")["event"]
        helper.kill()
        for wrong in (event, "00" * 64, "01" * 81, "ff"):
            assert not emulated_gateway.store(other, OLD, event=wrong)
            assert emulated_gateway.bench.pool.used_bytes == 0
        assert emulated_gateway.store(other, OLD)


class TestFailures:
    @pytest.mark.parametrize("operation", ["copy", "copying", "open_event"])
    def test_a_store_that_fails_publishes_nothing_and_the_next_one_works(
        self, emulated_gateway: Gateway, operation: str
    ) -> None:
        gateway, emulator = emulated_gateway, emulated_gateway.machine.emulator
        other = gateway.engine()
        emulator.fail(operation)
        assert not gateway.store(other, OLD)
        assert gateway.bench.pool.used_bytes == 0
        assert gateway.store(other, OLD)
        emulator.fail(operation)
        assert not gateway.retrieve(other, NEW)
        assert gateway.leased() == 0
        assert gateway.retrieve(other, NEW)

    def test_a_device_that_is_lost_is_reported_and_refused_from_then_on(self, emulated_gateway: Gateway) -> None:
        other = emulated_gateway.engine()
        emulated_gateway.machine.emulator.fail("copying", "cudaErrorIllegalAddress")
        assert not emulated_gateway.store(other, OLD)
        emulated_gateway.connect(emulated_gateway.start())
        assert len(emulated_gateway.server.registry) == 1

    def test_without_a_runtime_the_engine_copies_by_itself(self, emulated_gateway: Gateway) -> None:
        emulated_gateway.machine.emulator.fail("open", "cudaErrorMapBufferObjectFailed")
        other = emulated_gateway.start()
        emulated_gateway.connect(other)
        assert len(emulated_gateway.server.registry) == 0
        assert not emulated_gateway.store(other, OLD)


class TestTheEnd:
    def test_nothing_is_open_after_an_engine_unregistered(self, gateway: Gateway) -> None:
        machine = gateway.machine
        before = machine.runtime.memory_used(machine.device)
        other = gateway.engine()
        gateway.store(other, OLD)
        gateway.ask(other, do="unregister")
        gateway.until(gateway.is_unpinned, "the segment is unpinned")
        other.kill()
        # The driver takes a moment to clear away a process.
        wait_for(
            lambda: machine.runtime.memory_used(machine.device) <= before + machine.slack_bytes,
            "the engine's memory is closed",
        )

    def test_an_engine_killed_during_a_copy_leaves_no_block_and_no_memory(
        self, emulated: Machine, emulated_gateway: Gateway
    ) -> None:
        gateway = emulated_gateway
        other = gateway.engine()
        reached = emulated.emulator.pace.stop_after(100_000)
        other.tell(do="store", chunks=2, blocks=OLD)
        gateway.until(reached.is_set, "the copy is in its middle")
        other.kill()
        gateway.until(lambda: not len(gateway.server.registry), "the death is seen")
        # The copy that runs touches the memory still: it is closed when that ended.
        assert emulated.runtime.memory_used(emulated.device)
        emulated.emulator.pace.resume()
        gateway.until(gateway.is_unpinned, "all is closed")
        assert emulated.runtime.memory_used(emulated.device) == 0
        assert gateway.bench.pool.used_bytes == 0

    def test_an_engine_killed_before_its_event_came_does_not_hold_the_copy_up(
        self, emulated: Machine, emulated_gateway: Gateway
    ) -> None:
        gateway = emulated_gateway
        other, helper = gateway.engine(), gateway.start(blocks=1)
        event = helper.ask(do="pending")["event"]
        other.tell(do="store", chunks=2, blocks=OLD, event=event)
        (instance,) = gateway.server.registry
        gateway.until(lambda: instance.copying, "the copy waits")
        other.kill()
        gateway.until(lambda: gateway.is_unpinned() and not instance.copying, "all is closed")
        assert gateway.bench.pool.used_bytes == 0
        helper.kill()
        # A thread closes the engine's memory; nothing was pinned that would tell when.
        gateway.until(lambda: not emulated.runtime.memory_used(emulated.device), "the engine's memory is closed")

    def test_a_restarted_gateway_opens_the_handles_again(self, gateway: Gateway) -> None:
        other = gateway.engine()
        expected = digest(other, OLD)
        assert gateway.store(other, OLD)
        gateway.restart()
        assert len(gateway.server.registry) == 1
        assert gateway.retrieve(other, NEW)
        assert digest(other, NEW) == expected

    def test_engines_that_come_and_die_leave_no_memory_on_the_device(self, gateway: Gateway) -> None:
        machine = gateway.machine
        short_lived_workers = gateway.start("short_lived_workers", url=gateway.server.url, count=CYCLES)
        before = machine.runtime.memory_used(machine.device)
        open_files = len(os.listdir("/proc/self/fd"))
        short_lived_workers.tell(go=True)
        while True:
            gateway.pass_time(0.01)
            answer = gateway.heard(short_lived_workers)
            if answer is not None:
                break
        assert answer == {"failed": 0}
        gateway.until(lambda: not len(gateway.server.registry), "all deaths are seen")
        gateway.until(gateway.is_unpinned, "all is closed")
        wait_for(
            lambda: machine.runtime.memory_used(machine.device) <= before + machine.slack_bytes,
            "the memory of all of them is closed",
        )
        assert len(os.listdir("/proc/self/fd")) <= open_files + 2


class Gate:
    """Opening waits until it is let through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()


class TestOpening:
    @pytest.fixture
    def gate(self, emulated: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
        made, opens = Gate(), emulated.runtime.open

        def slow(handle: Handle) -> OpenedMemory:
            made.reached.set()
            assert made.open.wait(60)
            return opens(handle)

        monkeypatch.setattr(emulated.runtime, "open", slow)
        yield made
        made.open.set()

    def test_others_are_served_while_an_engine_s_memory_is_opened(self, emulated_gateway: Gateway, gate: Gate) -> None:
        gateway = emulated_gateway
        other = gateway.start()
        other.tell(do="connect", url=gateway.server.url)
        gateway.until(gate.reached.is_set, "its memory is being opened")
        assert gateway.client().ask("noop") == "OK"
        assert not len(gateway.server.registry)
        gate.open.set()
        assert gateway.hear(other) == {"registered": True}
        assert len(gateway.server.registry) == 1
        gateway.ask(other, do="unregister")

    def test_a_gateway_serves_before_it_has_reopened_memory(self, emulated_gateway: Gateway, gate: Gate) -> None:
        gateway = emulated_gateway
        gate.open.set()
        other = gateway.engine()
        gate.open.clear()
        gate.reached.clear()
        gateway.restart()
        gateway.until(gate.reached.is_set, "its memory is being opened again")
        assert gateway.client().ask("noop") == "OK"
        other.ask(do="reconnect")
        other.tell(do="store", chunks=2, blocks=OLD)
        (instance,) = gateway.server.registry
        gateway.until(lambda: instance.copying, "a copy waits for it")
        gate.open.set()
        assert gateway.hear(other) == {"result": True}

    def test_an_engine_that_ends_while_its_memory_is_opened_leaves_nothing_open(
        self, emulated: Machine, emulated_gateway: Gateway, gate: Gate
    ) -> None:
        gateway = emulated_gateway
        other = gateway.start()
        other.tell(do="connect", url=gateway.server.url)
        gateway.until(gate.reached.is_set, "its memory is being opened")
        other.kill()
        gateway.until(lambda: not len(gateway.server.connections), "its connection is closed")
        gate.open.set()
        gateway.until(lambda: not emulated.runtime.memory_used(emulated.device), "nothing is open")
        assert not len(gateway.server.registry)

    def test_an_engine_with_memory_that_cannot_be_reopened_is_forgotten(self, emulated_gateway: Gateway) -> None:
        gateway = emulated_gateway
        other = gateway.engine()
        gateway.machine.emulator.fail("open")
        gateway.restart()
        gateway.until(lambda: not len(gateway.server.registry), "it is forgotten")
        other.ask(do="reconnect")
        assert not gateway.store(other, OLD)
        assert gateway.connect(other) == {"registered": True}
        assert gateway.store(other, OLD)
