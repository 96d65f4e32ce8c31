"""Attached processes, their engine groups, and the reservations they hold.

An engine group is one scheduler plus its workers: the scheduler takes leases, the workers copy. So what a lost process
held stays charged until it and every process that was in its group at that time are proven gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dataplane.core.blocks import Block
from dataplane.core.quotas import Tenant
from dataplane.core.rings import RingReader
from dataplane.protocol.events import EngineStats
from dataplane.protocol.spaces import Space

MAX_SHOWN_MODELS = 8
MAX_SHOWN_CHARACTERS = 64


@dataclass(eq=False, slots=True)
class Reservation:
    """Blocks that one engine is writing, and the chain they belong to."""

    number: int
    tenant: Tenant
    space: int
    writing: dict[int, Block]
    """Position in the request's keys to the block to write there."""
    chain: list[tuple[Block, int]]
    """READY blocks of the same request and the control words they had; touched again at commit."""
    positions: list[int]
    """Positions of `chain`."""
    deadline: float


@dataclass(eq=False, slots=True)
class Engine:
    """One attached process."""

    client: int
    pid: int
    group: str
    name: str
    attached_at: float
    spaces: dict[int, bool]
    """Space number to whether it may write there."""
    space_list: list[Space]
    ring: RingReader
    connected: bool = True
    alive: bool = True
    """Its process is not proven gone."""
    reservations: dict[int, Reservation] = field(default_factory=dict)
    expired: dict[int, Reservation] = field(default_factory=dict)
    """Reservations past their deadline, whose blocks are quarantined until the engine speaks up or is gone."""
    waits_for: set[int] = field(default_factory=set)
    """After its connection closed: clients (itself too) whose processes must be gone before its bytes come back."""

    def stats(self) -> EngineStats:
        return EngineStats(
            client=self.client,
            pid=self.pid,
            group=self.group,
            engine=self.name,
            attached_at=self.attached_at,
            spaces=sorted({space.model[:MAX_SHOWN_CHARACTERS] for space in self.space_list})[
                :MAX_SHOWN_MODELS
            ],
            connected=self.connected,
            reserved_bytes=_charge(self.reservations),
            quarantined_bytes=_charge(self.expired),
            ring_dropped=self.ring.dropped,
        )


def _charge(reservations: dict[int, Reservation]) -> int:
    return sum(block.charge for held in reservations.values() for block in held.writing.values())
