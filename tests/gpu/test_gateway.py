"""Engines of a device whose caches the data plane copies: every byte, in order behind their events, and nothing left
open when they are gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.dataplane.plane import wait_for
from tests.gpu.layouts import ORDERS
from tests.gpu.machines import Machine, Other
from tests.gpu.pool import Gateway
from tests.lmcache.gateway import PlainPool

OLD = [*range(1, 17), *range(70, 54, -1)]
NEW = [*range(40, 56), 17, 16, 15, 14, *range(20, 32)]
CYCLES = int(os.environ.get("LARDER_TEST_GPU_CYCLES", "40"))
Make = Callable[..., Gateway]
Start = Callable[..., Other]


def engine(gateway: Gateway, start: Start, machine: Machine, **arguments: Any) -> Other:
    """Registered, its memory filled."""
    other = start(machine, "engine", **arguments)
    assert other.hear() == {"ready": True}
    other.ask(do="fill", seed=1)
    assert gateway.ask(other, do="connect", url=gateway.server.url) == {"registered": True}
    assert len(gateway.server.registry) == 1
    return other


@pytest.mark.parametrize("name", ORDERS)
def test_chunks_come_back_into_other_blocks(machine: Machine, make_gateway: Make, start: Start, name: str) -> None:
    gateway = make_gateway(machine)
    other = engine(gateway, start, machine, layout=name)
    expected = other.ask(do="blocks", numbers=OLD)["digest"]
    assert gateway.ask(other, do="store", chunks=2, blocks=OLD) == {"result": True}
    before = other.ask(do="blocks", numbers=NEW)["others"]
    assert gateway.ask(other, do="retrieve", chunks=2, blocks=NEW) == {"result": True}
    after = other.ask(do="blocks", numbers=NEW)
    assert after == {"digest": expected, "others": before}
    assert gateway.devices.named_is_pinned
    gateway.ask(other, do="unregister")


def test_the_driver_s_own_handle_does_as_well_as_torch_s(machine: Machine, make_gateway: Make, start: Start) -> None:
    gateway = make_gateway(machine)
    other = start(machine, "engine")
    other.hear()
    assert gateway.ask(other, do="connect", url=gateway.server.url, form="cuda_raw") == {"registered": True}
    assert gateway.ask(other, do="store", chunks=1, blocks=OLD) == {"result": True}
    gateway.ask(other, do="unregister")


@pytest.mark.parametrize(("skip", "unchanged"), [(16, 1), (100, 6), (256, 16), (10**6, 32)])
def test_blocks_that_others_read_are_left_alone(
    machine: Machine, make_gateway: Make, start: Start, skip: int, unchanged: int
) -> None:
    gateway = make_gateway(machine)
    other = engine(gateway, start, machine)
    assert gateway.ask(other, do="store", chunks=2, blocks=OLD)["result"]
    stored = other.ask(do="blocks", numbers=OLD[unchanged:])["digest"]
    other.ask(do="fill", seed=2)
    before = other.ask(do="blocks", numbers=NEW[unchanged:])["others"]
    assert gateway.ask(other, do="retrieve", chunks=2, blocks=NEW, skip=skip)["result"]
    assert other.ask(do="blocks", numbers=NEW[unchanged:]) == {"digest": stored, "others": before}
    gateway.ask(other, do="unregister")


def test_a_pool_that_cannot_be_pinned_is_copied_through_a_staging_buffer(
    emulated: Machine, make_gateway: Make, start: Start
) -> None:
    gateway = make_gateway(emulated, PlainPool)  # its memory begins anywhere
    gateway.pool.bytes = bytearray(64 << 20)
    other = engine(gateway, start, emulated)
    expected = other.ask(do="blocks", numbers=OLD)["digest"]
    assert gateway.ask(other, do="store", chunks=2, blocks=OLD) == {"result": True}
    assert gateway.ask(other, do="retrieve", chunks=2, blocks=NEW) == {"result": True}
    assert other.ask(do="blocks", numbers=NEW)["digest"] == expected
    gateway.ask(other, do="unregister")


def test_two_engines_of_one_form_share_their_blocks(machine: Machine, make_gateway: Make, start: Start) -> None:
    gateway = make_gateway(machine)
    others = []
    for seed in (1, 2):
        other = start(machine, "engine")
        other.hear()
        other.ask(do="fill", seed=seed)
        gateway.ask(other, do="connect", url=gateway.server.url)
        others.append(other)
    one, two = others
    assert len(gateway.server.registry) == 2
    expected = one.ask(do="blocks", numbers=OLD)["digest"]
    assert gateway.ask(one, do="store", chunks=2, blocks=OLD)["result"]
    assert gateway.ask(two, do="retrieve", chunks=2, blocks=NEW)["result"]
    assert two.ask(do="blocks", numbers=NEW)["digest"] == expected
    for other in others:
        gateway.ask(other, do="unregister")


def test_engines_that_copy_at_once_keep_their_own_bytes(machine: Machine, make_gateway: Make, start: Start) -> None:
    gateway = make_gateway(machine)
    others = [start(machine, "engine") for _ in range(3)]
    for seed, other in enumerate(others):
        other.hear()
        other.ask(do="fill", seed=seed)
        gateway.ask(other, do="connect", url=gateway.server.url)
    expected = [other.ask(do="blocks", numbers=OLD)["digest"] for other in others]
    for name, other in enumerate(others):
        other.tell(do="store", chunks=2, blocks=OLD, name=name)
    assert [gateway.hear(other) for other in others] == [{"result": True}] * 3
    for name, other in enumerate(others):
        other.tell(do="retrieve", chunks=2, blocks=NEW, name=name)
    assert [gateway.hear(other) for other in others] == [{"result": True}] * 3
    assert [other.ask(do="blocks", numbers=NEW)["digest"] for other in others] == expected
    for other in others:
        gateway.ask(other, do="unregister")


@pytest.mark.parametrize(
    "wrong",
    [{"nbytes": 1 << 40}, {"uuid": "00000000-0000-4000-8000-000000000000"}, {"body": "00" * 64}, {"body": "ff" * 64}],
    ids=str,
)
def test_memory_that_is_not_there_is_refused_and_nothing_stays_open(
    machine: Machine, make_gateway: Make, start: Start, wrong: dict[str, Any]
) -> None:
    gateway = make_gateway(machine)
    other = start(machine, "engine")
    other.hear()
    gateway.ask(other, do="connect", url=gateway.server.url, **wrong)
    assert len(gateway.server.registry) == 0
    assert gateway.ask(other, do="store", chunks=1, blocks=OLD) == {"result": False}
    assert gateway.ask(other, do="connect", url=gateway.server.url) == {"registered": True}
    assert gateway.ask(other, do="store", chunks=1, blocks=OLD) == {"result": True}
    gateway.ask(other, do="unregister")
    other.kill()
    if machine.kind == "emulated":  # a thread closes the engine's memory
        gateway.until(lambda: not machine.runtime.memory_used(machine.device), "the engine's memory is closed")


class TestOrder:
    def test_a_copy_waits_for_the_engine_s_event(self, emulated: Machine, make_gateway: Make, start: Start) -> None:
        gateway = make_gateway(emulated)
        other, helper = engine(gateway, start, emulated), start(emulated, "engine")
        helper.hear()
        event = helper.ask(do="pending")["event"]
        other.tell(do="store", chunks=1, blocks=OLD[:16], event=event)
        (instance,) = gateway.server.registry
        gateway.until(lambda: instance.copying, "the copy is asked for")
        assert instance.copying == 1
        assert gateway.bench.pool.used_bytes
        helper.ask(do="resume")
        assert gateway.hear(other) == {"result": True}
        gateway.ask(other, do="unregister")

    def test_an_event_of_a_process_that_died_fails_the_copy_and_publishes_nothing(
        self, emulated: Machine, make_gateway: Make, start: Start
    ) -> None:
        gateway = make_gateway(emulated)
        other, helper = engine(gateway, start, emulated), start(emulated, "engine")
        helper.hear()
        event = helper.ask(do="pending")["event"]
        helper.kill()
        assert gateway.ask(other, do="store", chunks=1, blocks=OLD[:16], event=event) == {"result": False}
        assert gateway.bench.pool.used_bytes == 0
        gateway.ask(other, do="unregister")

    @pytest.mark.parametrize("event", ["00" * 64, "01" * 81, "ff"])
    def test_an_invalid_event_fails_the_copy(
        self, emulated: Machine, make_gateway: Make, start: Start, event: str
    ) -> None:
        gateway = make_gateway(emulated)
        other = engine(gateway, start, emulated)
        assert gateway.ask(other, do="store", chunks=1, blocks=OLD[:16], event=event) == {"result": False}
        assert gateway.ask(other, do="store", chunks=1, blocks=OLD[:16]) == {"result": True}
        gateway.ask(other, do="unregister")

    def test_engines_do_not_wait_for_each_other_s_events(
        self, emulated: Machine, make_gateway: Make, start: Start
    ) -> None:
        gateway = make_gateway(emulated)
        helper = start(emulated, "engine")
        helper.hear()
        event = helper.ask(do="pending")["event"]
        slow = [start(emulated, "engine") for _ in range(3)]
        for other in slow:
            other.hear()
            gateway.ask(other, do="connect", url=gateway.server.url)
        for at, other in enumerate(slow[:2]):
            other.tell(do="store", chunks=1, blocks=OLD[:16], event=event, name=at + 1)
        gateway.until(lambda: sum(each.copying for each in gateway.server.registry) == 2, "two wait")
        assert gateway.ask(slow[2], do="store", chunks=1, blocks=OLD[:16], name=5) == {"result": True}
        helper.ask(do="resume")
        for other in slow[:2]:
            assert gateway.hear(other) == {"result": True}
        for other in slow:
            gateway.ask(other, do="unregister")


class TestFailures:
    @pytest.mark.parametrize("operation", ["copy", "copying", "open_event"])
    def test_a_store_that_fails_publishes_nothing_and_the_next_one_works(
        self, emulated: Machine, make_gateway: Make, start: Start, operation: str
    ) -> None:
        gateway = make_gateway(emulated)
        other = engine(gateway, start, emulated)
        emulated.emulator.fail(operation)
        assert gateway.ask(other, do="store", chunks=2, blocks=OLD) == {"result": False}
        assert gateway.bench.pool.used_bytes == 0
        assert gateway.ask(other, do="store", chunks=2, blocks=OLD) == {"result": True}
        emulated.emulator.fail(operation)
        assert gateway.ask(other, do="retrieve", chunks=2, blocks=NEW) == {"result": False}
        assert gateway.leased() == 0
        assert gateway.ask(other, do="retrieve", chunks=2, blocks=NEW) == {"result": True}
        gateway.ask(other, do="unregister")

    def test_a_device_that_is_lost_is_reported_and_refused_from_then_on(
        self, emulated: Machine, make_gateway: Make, start: Start
    ) -> None:
        gateway = make_gateway(emulated)
        other = engine(gateway, start, emulated)
        emulated.emulator.fail("copying", "cudaErrorIllegalAddress")
        assert gateway.ask(other, do="store", chunks=1, blocks=OLD) == {"result": False}
        late = start(emulated, "engine")
        late.hear()
        gateway.ask(late, do="connect", url=gateway.server.url)
        assert len(gateway.server.registry) == 1
        gateway.ask(other, do="unregister")

    def test_without_a_runtime_the_engine_copies_by_itself(
        self, emulated: Machine, make_gateway: Make, start: Start
    ) -> None:
        gateway = make_gateway(emulated)
        emulated.emulator.fail("open", "cudaErrorMapBufferObjectFailed")
        other = start(emulated, "engine")
        other.hear()
        gateway.ask(other, do="connect", url=gateway.server.url)
        assert len(gateway.server.registry) == 0
        assert gateway.ask(other, do="store", chunks=1, blocks=OLD) == {"result": False}


class TestTheEnd:
    def test_nothing_is_open_after_an_engine_unregistered(
        self, machine: Machine, make_gateway: Make, start: Start
    ) -> None:
        gateway = make_gateway(machine)
        before = machine.runtime.memory_used(machine.device)
        other = engine(gateway, start, machine)
        gateway.ask(other, do="store", chunks=1, blocks=OLD)
        gateway.ask(other, do="unregister")
        gateway.until(lambda: not gateway.devices.named_is_pinned, "the segment is unpinned")
        other.kill()
        # The driver takes a moment to clear away a process.
        wait_for(
            lambda: machine.runtime.memory_used(machine.device) <= before + machine.slack_bytes,
            "the engine's memory is closed",
        )

    def test_an_engine_killed_during_a_copy_leaves_no_block_and_no_memory(
        self, emulated: Machine, make_gateway: Make, start: Start
    ) -> None:
        gateway = make_gateway(emulated)
        other = engine(gateway, start, emulated)
        reached = emulated.emulator.pace.stop_after(100_000)
        other.tell(do="store", chunks=2, blocks=OLD)
        gateway.until(reached.is_set, "the copy is in its middle")
        other.kill()
        gateway.until(lambda: not len(gateway.server.registry), "the death is seen")
        # The copy that runs touches the memory still: it is closed when that ended.
        assert emulated.runtime.memory_used(emulated.device)
        emulated.emulator.pace.resume()
        gateway.until(lambda: not gateway.devices.named_is_pinned, "all is closed")
        assert emulated.runtime.memory_used(emulated.device) == 0
        assert gateway.bench.pool.used_bytes == 0

    def test_an_engine_killed_before_its_event_came_does_not_hold_the_copy_up(
        self, emulated: Machine, make_gateway: Make, start: Start
    ) -> None:
        gateway = make_gateway(emulated)
        other, helper = engine(gateway, start, emulated), start(emulated, "engine", blocks=1)
        helper.hear()
        event = helper.ask(do="pending")["event"]
        other.tell(do="store", chunks=2, blocks=OLD, event=event)
        (instance,) = gateway.server.registry
        gateway.until(lambda: instance.copying, "the copy waits")
        other.kill()
        gateway.until(lambda: not gateway.devices.named_is_pinned and not instance.copying, "all is closed")
        assert gateway.bench.pool.used_bytes == 0
        helper.kill()
        # A thread closes the engine's memory; nothing was pinned that would tell when.
        gateway.until(lambda: not emulated.runtime.memory_used(emulated.device), "the engine's memory is closed")

    def test_a_restarted_gateway_opens_the_handles_again(
        self, machine: Machine, make_gateway: Make, start: Start
    ) -> None:
        gateway = make_gateway(machine)
        other = engine(gateway, start, machine)
        expected = other.ask(do="blocks", numbers=OLD)["digest"]
        assert gateway.ask(other, do="store", chunks=2, blocks=OLD)["result"]
        gateway.restart()
        assert len(gateway.server.registry) == 1
        assert gateway.ask(other, do="retrieve", chunks=2, blocks=NEW)["result"]
        assert other.ask(do="blocks", numbers=NEW)["digest"] == expected
        gateway.ask(other, do="unregister")

    def test_engines_that_come_and_die_leave_no_memory_on_the_device(
        self, machine: Machine, make_gateway: Make, start: Start
    ) -> None:
        gateway = make_gateway(machine)
        short_lived_workers = start(machine, "short_lived_workers", url=gateway.server.url, count=CYCLES)
        short_lived_workers.hear()
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
        gateway.until(lambda: not gateway.devices.named_is_pinned, "all is closed")
        wait_for(
            lambda: machine.runtime.memory_used(machine.device) <= before + machine.slack_bytes,
            "the memory of all of them is closed",
        )
        assert len(os.listdir("/proc/self/fd")) <= open_files + 2
