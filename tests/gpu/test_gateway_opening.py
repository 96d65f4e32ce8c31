"""An engine's memory is opened beside everything else that a gateway does."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dataplane.devices.runtime import Handle, OpenedMemory
from tests.gpu.machines import Machine, Start
from tests.gpu.test_gateway import OLD, Make, engine


class Gate:
    """Opening waits until it is let through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()


@pytest.fixture
def gate(emulated: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, opens = Gate(), emulated.runtime.open

    def slow(handle: Handle) -> OpenedMemory:
        made.reached.set()
        assert made.open.wait(60)
        return opens(handle)

    monkeypatch.setattr(emulated.runtime, "open", slow)
    yield made
    made.open.set()


def test_others_are_served_while_an_engine_s_memory_is_opened(
    emulated: Machine, make_gateway: Make, start: Start, gate: Gate
) -> None:
    gateway = make_gateway(emulated)
    other = start(emulated, "engine")
    other.hear()
    other.tell(do="connect", url=gateway.server.url)
    gateway.until(gate.reached.is_set, "its memory is being opened")
    assert gateway.client().ask("noop") == "OK"
    assert not len(gateway.server.registry)
    gate.open.set()
    assert gateway.hear(other) == {"registered": True}
    assert len(gateway.server.registry) == 1
    gateway.ask(other, do="unregister")


def test_a_gateway_serves_before_it_has_reopened_memory(
    emulated: Machine, make_gateway: Make, start: Start, gate: Gate
) -> None:
    gateway = make_gateway(emulated)
    gate.open.set()
    other = engine(gateway, start, emulated)
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
    gateway.ask(other, do="unregister")


def test_an_engine_that_ends_while_its_memory_is_opened_leaves_nothing_open(
    emulated: Machine, make_gateway: Make, start: Start, gate: Gate
) -> None:
    gateway = make_gateway(emulated)
    other = start(emulated, "engine")
    other.hear()
    other.tell(do="connect", url=gateway.server.url)
    gateway.until(gate.reached.is_set, "its memory is being opened")
    other.kill()
    gateway.until(lambda: not len(gateway.server.connections), "its connection is closed")
    gate.open.set()
    gateway.until(lambda: not emulated.runtime.memory_used(emulated.device), "nothing is open")
    assert not len(gateway.server.registry)


def test_an_engine_with_memory_that_cannot_be_reopened_is_forgotten(
    emulated: Machine, make_gateway: Make, start: Start
) -> None:
    gateway = make_gateway(emulated)
    other = engine(gateway, start, emulated)
    emulated.emulator.fail("open")
    gateway.restart()
    gateway.until(lambda: not len(gateway.server.registry), "it is forgotten")
    other.ask(do="reconnect")
    assert gateway.ask(other, do="store", chunks=1, blocks=OLD) == {"result": False}
    assert gateway.ask(other, do="connect", url=gateway.server.url) == {"registered": True}
    assert gateway.ask(other, do="store", chunks=1, blocks=OLD) == {"result": True}
    gateway.ask(other, do="unregister")
