"""Attached processes, their engine groups, and the reservations they hold.

An engine group is one scheduler plus its workers: the scheduler takes leases, the workers copy. So what a lost process
held stays charged until it and every process that was in its group at that time are proven gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.core.blocks import Block, name_of_segment
from dataplane.core.names import EngineName, Record, SpaceName, TenantName
from dataplane.core.quotas import Tenant
from dataplane.core.rings import RingReader
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import Attach
from dataplane.protocol.events import EngineStats
from dataplane.protocol.layout import H_MEMORY
from dataplane.protocol.spaces import Space

if TYPE_CHECKING:
    from dataplane.core.pool import Pool

MAX_GROUP_CHARACTERS = 128
MAX_SPACES_PER_ENGINE = 1024
MAX_SPACES_PER_PROCESS = 4096
"""Of all its attachments together."""
MAX_SHOWN_MODELS = 8
MAX_SHOWN_CHARACTERS = 64
MAX_SHOWN_PIDS = 8


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
    keys: bytes = b""
    """The request's keys, packed."""
    stamp: int = 0
    """As its blocks have it."""
    invalid: bool = False
    """An invalidation covers it: nothing of it is published."""


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
    started: int = 0
    """Start of its process in clock ticks since boot; 0 when it is not known."""
    gateway: str = ""
    """The gateway that attached it; empty for one of the engine socket."""
    leading: int | None = None
    """The space that its look-ups count in, 0 for none; None until that is looked up."""
    resumed: bool = False
    """Its last attach went on with what it had: client number, area and counters."""
    connected: bool = True
    alive: bool = True
    """Its process is not proven gone."""
    reservations: dict[int, Reservation] = field(default_factory=dict)
    expired: dict[int, Reservation] = field(default_factory=dict)
    """Reservations past their deadline, whose blocks are quarantined until the engine speaks up or is gone."""
    last_run: frozenset[int] = frozenset()
    """Descriptors of the chain that it acquired last and has not stored behind yet."""
    waits_for: set[int] = field(default_factory=set)
    """After its connection closed: clients (itself too) whose processes must be gone before its bytes come back."""

    def stats(self, leased_blocks: int, engines: Mapping[int, Engine]) -> EngineStats:
        waits = {engines[client].pid for client in self.waits_for if client in engines}
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
            ring_invalid=self.ring.invalid,
            leased_blocks=leased_blocks,
            alive=self.alive,
            waits_for_pids=sorted(waits)[:MAX_SHOWN_PIDS],
        )


def _charge(reservations: dict[int, Reservation]) -> int:
    return sum(block.charge for held in reservations.values() for block in held.writing.values())


# ---- who may attach


def check_gateway(message: Attach, gateway: str) -> None:
    """Spaces of a gateway are for the engines that it attaches, and for nobody else. Raises ProtocolError."""
    for at, request in enumerate(message.spaces):
        if request.space.gateway == gateway:
            continue
        of = f"the {gateway} gateway's engines" if gateway else "engines of the engine socket"
        raise ProtocolError(
            Code.BAD_SPACE,
            f"expected {gateway!r}, got {request.space.gateway[:32]!r}: {of} have spaces of their own",
            f"spaces[{at}].space.gateway",
        )


def check_newcomer(
    message: Attach,
    pid: int,
    engines: Mapping[int, Engine],
    pool: Pool,
    max_clients: int,
    gateway: str = "",
) -> None:
    """Refuse an attachment that is one too many, or that names a group or spaces which cannot be served.

    Raises ProtocolError.
    """
    if len(engines) >= max_clients:
        raise ProtocolError(Code.TOO_MANY_CLIENTS, f"at most {max_clients} engines are served")
    share = max(64, max_clients // 2)
    if sum(engine.pid == pid for engine in engines.values()) >= share:
        raise ProtocolError(
            Code.TOO_MANY_CLIENTS,
            f"at most {share} attachments of one process are served, lost ones included",
        )
    if not 1 <= len(message.group) <= MAX_GROUP_CHARACTERS or not message.group.isprintable():
        raise ProtocolError(
            Code.BAD_GROUP, f"expected 1 to {MAX_GROUP_CHARACTERS} printable characters", "group"
        )
    _check_spaces(message, pid, engines, pool, least=0 if gateway else 1)
    refusal = pool.table.names.refusal(pid, (request.space for request in message.spaces))
    if refusal is not None:
        raise ProtocolError(Code.BAD_SPACE, refusal, "spaces")


def _check_spaces(
    message: Attach, pid: int, engines: Mapping[int, Engine], pool: Pool, *, least: int
) -> None:
    if not least <= len(message.spaces) <= MAX_SPACES_PER_ENGINE:
        raise ProtocolError(
            Code.BAD_SPACE,
            f"expected {least} to {MAX_SPACES_PER_ENGINE} spaces, got {len(message.spaces)}",
            "spaces",
        )
    for at, request in enumerate(message.spaces):
        pool.spaces.check(request.space, f"spaces[{at}].space")
    identities = {request.space.identity() for request in message.spaces}
    if len(identities) != len(message.spaces):
        raise ProtocolError(Code.BAD_SPACE, "expected each space once", "spaces")
    own = [engine.spaces for engine in engines.values() if engine.pid == pid]
    if len(message.spaces) + sum(map(len, own)) <= MAX_SPACES_PER_PROCESS:
        return
    numbers = [pool.spaces.known(request.space) for request in message.spaces]
    known = set().union(*own, filter(None, numbers))
    if len(known) + numbers.count(None) > MAX_SPACES_PER_PROCESS:
        raise ProtocolError(
            Code.BAD_SPACE,
            f"expected at most {MAX_SPACES_PER_PROCESS} spaces in all attachments of one process",
            "spaces",
        )


# ---- what outlives a restart


def name_of_engine(engine: Engine) -> EngineName:
    """The record of an attachment, in memory that no engine can write."""
    return EngineName(
        engine.client,
        engine.pid,
        engine.started,
        engine.group,
        engine.name,
        engine.attached_at,
        list(engine.spaces.items()),
        engine.gateway,
    )


def live_names(pool: Pool, engines: Mapping[int, Engine]) -> Iterator[Record]:
    """Every name that still counts."""
    for number, space in pool.spaces.by_number.items():
        yield SpaceName(number, space)
    for tenant in pool.tenants.by_salt.values():
        if tenant.blocks:
            yield TenantName(tenant.number, tenant.salt)
    for segment in pool.slabs.segments.values():
        yield name_of_segment(segment)
    for engine in engines.values():
        yield name_of_engine(engine)


def resumable(
    engine: Engine | None, message: Attach, pid: int, pool: Pool, gateway: str = ""
) -> Engine | None:
    """The engine itself when an attach goes on with it: the same process, memory, group and spaces.

    A process without a pid cannot prove that it is the same one; a gateway, which is this process, vouches for it.
    """
    if engine is None or engine.connected or not engine.alive or not (pid or gateway):
        return None
    if engine.gateway != gateway:
        return None
    memory = pool.table.memory.cells[H_MEMORY]
    wanted = [(request.space.identity(), request.writes) for request in message.spaces]
    had = [
        (space.identity(), writes)
        for space, writes in zip(engine.space_list, engine.spaces.values(), strict=True)
    ]
    same = (engine.pid, engine.group, memory, had) == (pid, message.group, message.resume_memory, wanted)
    return engine if same and memory else None
