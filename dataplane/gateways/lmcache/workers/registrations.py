"""Registrations of workers, as the registry stores them."""

from __future__ import annotations

import msgspec

from dataplane.gateways.lmcache.wire.messages import EngineContext, Group, Hints
from dataplane.gateways.lmcache.zmtp.processes import Owner


class DeviceContext(msgspec.Struct):
    """Registration of a worker whose cache this node copies."""

    wrappers: list[bytes]
    model_name: str
    world_size: int
    engine_type: str
    hints: Hints | None
    groups: list[Group]


class RegisteredWorker(msgspec.Struct):
    """One stored registration."""

    instance: int
    pid: int
    started: int
    client: int
    """Client number of its engine in the core."""
    memory: int
    """Identity of the core's memory to which the client number belongs."""
    named: int = 0
    """Identity of the named segment that an engine-driven worker maps."""
    engine: EngineContext | None = None
    device: DeviceContext | None = None

    @property
    def owner(self) -> Owner:
        return self.pid, self.started

    @property
    def model_name(self) -> str:
        return (self.engine or self._device).model_name

    @property
    def world_size(self) -> int:
        return (self.engine or self._device).world_size

    @property
    def _device(self) -> DeviceContext:
        assert self.device is not None
        return self.device
