"""Attached processes, their engine groups, and the reservations they hold.

An engine group is one scheduler plus its workers: the scheduler takes leases, the workers copy. Therefore the blocks of
a lost process stay charged until that process and every process that was in its group at that time are proven gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from dataplane.core.blocks.blocks import Block
from dataplane.core.engines.operations import OperationReader
from dataplane.core.engines.rings import RingReader
from dataplane.core.journal.id_journal import EngineName, SpaceName
from dataplane.core.journal.recovery_table import B_SPACE
from dataplane.core.pool.hints import Hint
from dataplane.core.tenants.tenant import Tenant, wrapped
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.spaces import Space
from dataplane.protocol.stats.engines import EngineStats

if TYPE_CHECKING:
    from dataplane.core.pool.pool import Pool

MAX_SHOWN_MODELS = 8
MAX_SHOWN_CHARACTERS = 64
MAX_SHOWN_PIDS = 8


@dataclass(eq=False, slots=True)
class OpenReservation:
    """Blocks that one engine is writing, and the chain they belong to."""

    number: int
    tenant: Tenant
    space: int
    writing: dict[int, Block]
    """Blocks that are being written, by position in the request's keys."""
    present: dict[int, tuple[Block, int]]
    """READY blocks of the same request with their control words at that time, by position. Commit touches them
    again."""
    deadline: float
    keys: bytes = b""
    """The request's keys, packed."""
    parent: bytes = b""
    """The key before the first one; empty if there is none."""
    before: Block | None = None
    """Block of that key when the blocks were reserved."""
    timestamp: int = 0
    """Timestamp of its blocks."""
    from_tier: bool = False
    """Whether its blocks are loaded from a tier: they are not new, and count neither as stored nor for the trace."""
    invalid: bool = False
    """Whether an invalidation covers the reservation, so that none of its blocks may be published."""
    hint: Hint | None = None
    """Hint of the request."""
    session: int = 0
    """Id of the request's session; 0 if it names none."""


class Expulsion(IntEnum):
    """Whether an operator expelled an attachment. The journal stores the numbers."""

    NONE = 0
    BARRED = 1
    """Its lease counters are ignored, and its process must not attach."""
    READMITTED = 2
    """Its lease counters are ignored; its process may attach again."""


@dataclass(eq=False, slots=True)
class Engine:
    """One attached process."""

    client: int
    pid: int
    group: str
    name: str
    attached_at: float
    spaces: dict[int, bool]
    """Whether the engine may write to a space, by space number."""
    space_list: list[Space]
    ring: RingReader
    started: int = 0
    """Start time of its process in clock ticks since boot; 0 when unknown."""
    gateway: str = ""
    """Gateway that attached the engine; empty for an engine of the engine socket."""
    leading: int | None = None
    """Space in which its look-ups count, 0 for none; None until it is determined."""
    resumed: bool = False
    """Whether its last attach resumed the attachment, with the same client number, area and counters."""
    connected: bool = True
    alive: bool = True
    """False once its process is proven gone."""
    expelled: Expulsion = Expulsion.NONE
    reservations: dict[int, OpenReservation] = field(default_factory=dict)
    expired: dict[int, OpenReservation] = field(default_factory=dict)
    """Reservations past their deadline. Their blocks are quarantined until the engine commits or aborts, or is gone."""
    last_run: frozenset[int] = frozenset()
    """Descriptors of the last acquired chain that no store has followed yet."""
    waits_for: set[int] = field(default_factory=set)
    """Clients, itself included, whose processes must be gone before its bytes are released. Set when its connection
    closes."""
    read_bytes: int = 0
    read_tokens: int = 0
    stored_bytes: int = 0
    operations: OperationReader = field(init=False)

    def __post_init__(self) -> None:
        self.operations = OperationReader(self.ring.area, self.attached_at)

    @property
    def counted_spaces(self) -> Collection[int] | None:
        """Return the spaces in which its lease counters count.

        None means all spaces: only this process writes the counters of a gateway.
        """
        return None if self.gateway else self.spaces

    def is_made_by(self, pid: int, started: int) -> bool:
        """Return whether the given process made this attachment.

        A process of another pid namespace has no pid and never matches.
        """
        return pid > 0 and (self.pid, self.started) == (pid, started)

    def read(self, tokens: int, nbytes: int) -> None:
        """Count an acquired chain."""
        self.read_tokens = wrapped(self.read_tokens + tokens)
        self.read_bytes = wrapped(self.read_bytes + nbytes)

    def stats(self, leased_blocks: int, engines: Mapping[int, Engine]) -> EngineStats:
        waits = {engines[client].pid for client in self.waits_for if client in engines}
        return EngineStats(
            client=self.client,
            pid=self.pid,
            group=self.group,
            engine=self.name,
            attached_at=self.attached_at,
            spaces=sorted({space.model[:MAX_SHOWN_CHARACTERS] for space in self.space_list})[:MAX_SHOWN_MODELS],
            connected=self.connected,
            reserved_bytes=charge_of(self.reservations),
            quarantined_bytes=charge_of(self.expired),
            ring_dropped=self.ring.dropped,
            ring_entries_rejected=self.ring.invalid,
            leased_blocks=leased_blocks,
            alive=self.alive,
            waits_for_pids=sorted(waits)[:MAX_SHOWN_PIDS],
            expelled=self.expelled.name.lower() if self.expelled else "",
            read_bytes=self.read_bytes,
            read_tokens=self.read_tokens,
            stored_bytes=self.stored_bytes,
        )


def charge_of(reservations: dict[int, OpenReservation]) -> int:
    """Return the charged bytes of the blocks that the reservations are writing."""
    return sum(block.charge for reservation in reservations.values() for block in reservation.writing.values())


# ---- state that outlives a restart


def name_of_engine(engine: Engine) -> EngineName:
    """Return the journal record of an attachment, which lies in memory that no engine can write."""
    return EngineName(
        engine.client,
        engine.pid,
        engine.started,
        engine.group,
        engine.name,
        engine.attached_at,
        list(engine.spaces.items()),
        engine.gateway,
        engine.expelled,
    )


def attach_space(pool: Pool, engine: Engine, space: Space) -> int:
    """Attach an engine of the data plane to another space, and return the number of the space. Raise ProtocolError."""
    pool.spaces.check(space, "space")
    refusal = pool.table.names.refusal(engine.pid, [space])
    if refusal is not None:
        raise ProtocolError(Code.BAD_SPACE, refusal, "space")
    number = pool.spaces.number(space)
    write_down_spaces(pool, [number])
    engine.spaces[number] = True
    return number


def write_down_spaces(pool: Pool, numbers: Iterable[int]) -> None:
    """Write the records of spaces to the id journal, before an engine can access anything of them."""
    table, spaces = pool.table, pool.spaces.by_number
    for number in numbers:
        if not table.names.has(SpaceName, number):
            table.recovery_table.assigned(B_SPACE, number)
            table.names.append(SpaceName(number, spaces[number]))
