"""The engines of a node, from the attach request of a process until that process is proven gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, ValuesView

from dataplane.core.blocks.ports import MemorySource
from dataplane.core.engines.engines import Engine, Expulsion, name_of_engine, write_down_spaces
from dataplane.core.engines.operations import OperationTotals
from dataplane.core.engines.rings import RingReader
from dataplane.core.engines.storing import StoreService
from dataplane.core.journal.id_journal import EngineEnd
from dataplane.core.journal.recovery_table import B_CLIENT
from dataplane.core.pool.pool import Pool
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import VERSION, Attach
from dataplane.protocol.events import EngineAttached, EngineDetached, EngineReleased, Event, LeaseBroken
from dataplane.protocol.layout import H_MEMORY, AreaMemory
from dataplane.protocol.spaces import TIER_GATEWAY, TIER_MOVER

MAX_ENGINE_CHARACTERS = 128
MAX_GROUP_CHARACTERS = 128
MAX_SPACES_PER_ENGINE = 1024
MAX_SPACES_PER_PROCESS = 4096
"""Maximum number of spaces over all attachments of one process."""


class Engines(Mapping[int, Engine]):
    """Engines by client number. Methods that end attachments return the clients that are gone for good."""

    def __init__(
        self, pool: Pool, storing: StoreService, memory: MemorySource, max_clients: int, emit: Callable[[Event], None]
    ) -> None:
        self._pool = pool
        self._storing = storing
        self._memory = memory
        self._max_clients = max_clients
        self._emit = emit
        self.operations = OperationTotals()
        self._by_client: dict[int, Engine] = {}
        self._next_client = pool.table.recovery_table.highest(B_CLIENT) + 1

    def __getitem__(self, client: int) -> Engine:
        return self._by_client[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_client)

    def __len__(self) -> int:
        return len(self._by_client)

    def values(self) -> ValuesView[Engine]:
        return self._by_client.values()

    def connected(self, client: int) -> Engine:
        """Return an engine that has a connection. Raise ProtocolError if there is none of this number."""
        engine = self._by_client.get(client)
        if engine is None or not engine.connected:
            raise ProtocolError(Code.NOT_ATTACHED, f"no engine {client} is attached")
        return engine

    def read_operations(self, engine: Engine, now: float) -> None:
        """Count the operations that an engine has completed. Counts that it cannot have reached are rejected."""
        if not engine.expelled and not engine.operations.drain(self.operations, now):
            engine.ring.invalid += 1
            self._pool.totals.ring_entries_rejected += 1

    # ---- attach

    def attach(self, message: Attach, pid: int, now: float, started: int, gateway: str) -> tuple[Engine, list[int]]:
        """Attach a process, or let it resume its attachment. See `Node.attach`. Raise ProtocolError on refusal."""
        if message.version != VERSION:
            raise ProtocolError(
                Code.VERSION_MISMATCH, f"this data plane speaks {VERSION}, got {message.version}", "version"
            )
        _check_gateway(message, gateway)
        before = _resumable(self._by_client.get(message.resume), message, pid, self._pool, gateway)
        if before is not None:
            return self._resume(before, message, now)
        self._check_expelled(pid, started)
        if self._storing.draining and gateway != TIER_GATEWAY:
            raise ProtocolError(
                Code.DRAINING, "the node is draining and accepts no new engines; attach to another node"
            )
        _check_attach(message, pid, self, self._pool, self._max_clients, gateway)
        client = self._next_client
        try:
            area = self._memory.create_area(client)
        except MemoryError:
            raise ProtocolError(Code.OUT_OF_MEMORY, "the machine refused memory for the engine's area") from None
        self._next_client += 1
        self._pool.table.recovery_table.assigned(B_CLIENT, client)
        numbers = [self._pool.spaces.number(request.space) for request in message.spaces]
        engine = Engine(
            client=client,
            pid=pid,
            group=message.group,
            name=message.engine[:MAX_ENGINE_CHARACTERS],
            attached_at=now,
            spaces={number: request.writes for number, request in zip(numbers, message.spaces, strict=True)},
            space_list=[request.space for request in message.spaces],
            ring=RingReader(area),
            started=started,
            gateway=gateway,
        )
        write_down_spaces(self._pool, numbers)
        self._pool.table.names.append(name_of_engine(engine))
        self.adopt(engine, area)
        self._emit_attached(engine, now)
        return engine, numbers

    def _resume(self, engine: Engine, message: Attach, now: float) -> tuple[Engine, list[int]]:
        """Let a process continue its attachment. Release the expired reservations that it no longer writes."""
        engine.connected = engine.resumed = True
        engine.waits_for.clear()
        self._pool.usage.pass_to(now)
        for number in engine.expired.keys() - set(message.writing):
            self._storing.release_quarantined(engine.expired.pop(number))
        self._emit_attached(engine, now)
        return engine, list(engine.spaces)

    def _emit_attached(self, engine: Engine, now: float) -> None:
        models = sorted({space.model for space in engine.space_list})
        self._emit(EngineAttached(now, engine.client, engine.pid, engine.group, engine.name, models))

    def adopt(self, engine: Engine, area: AreaMemory) -> None:
        """Add an engine. Add its area to the lease scan unless the engine was expelled."""
        if not engine.expelled:
            self._pool.leases.add(engine.client, area, engine.counted_spaces)
        self._by_client[engine.client] = engine
        if engine.gateway != TIER_GATEWAY:
            self._pool.spaces.attached(engine.spaces)

    def _check_expelled(self, pid: int, started: int) -> None:
        """Raise ProtocolError(EXPELLED) if the process is expelled and not readmitted."""
        for engine in self._by_client.values():
            if engine.expelled is Expulsion.BARRED and engine.is_made_by(pid, started):
                raise ProtocolError(
                    Code.EXPELLED,
                    f"an operator expelled process {pid}: it may attach again once the operator readmits it, "
                    "or after it is started again",
                )

    # ---- the end

    def expire(self, now: float) -> None:
        """Quarantine the blocks of reservations whose deadline has passed."""
        for engine in self._by_client.values():
            if engine.reservations:
                self._storing.expire(engine, now)

    def disconnected(self, engine: Engine, reason: str, now: float) -> list[int]:
        """Handle a connection that closed without a detach message. Return the clients that are gone.

        The engine loses its rights at once. Its bytes stay until every process of its group is proven gone.
        """
        engine.connected = False
        engine.waits_for = {
            other.client for other in self._by_client.values() if other.group == engine.group and other.alive
        }
        blocks = self._storing.lose_owner(engine)
        self._emit(EngineDetached(now, engine.client, engine.pid, engine.group, reason, blocks))
        return self._reap([engine], now)

    def detached(self, engine: Engine, now: float) -> list[int]:
        """Handle a process that declares that it no longer holds or maps anything. Return the clients that are
        gone."""
        for number in [*engine.reservations, *engine.expired]:
            self._storing.abort(engine, number, now)
        engine.connected = False
        self._emit(EngineDetached(now, engine.client, engine.pid, engine.group, "client detached", 0))
        self._release(engine, now)
        return [engine.client, *self._reap(self._end_waits(engine.client), now)]

    def process_ended(self, engine: Engine, now: float) -> list[int]:
        """Handle the proven end of the process of an engine without a connection. Return the clients that are gone."""
        engine.alive = False
        return self._reap([engine, *self._end_waits(engine.client)], now)

    def _end_waits(self, client: int) -> list[Engine]:
        """End the wait of engines for a client. Return these engines."""
        waiting = [engine for engine in self._by_client.values() if client in engine.waits_for]
        for engine in waiting:
            engine.waits_for.remove(client)
        return waiting

    def _reap(self, engines: list[Engine], now: float) -> list[int]:
        """Release those of the engines whose processes, and those that they wait for, are gone, and then engines that
        waited for them. Return their clients."""
        gone: list[int] = []
        candidates = deque(engines)
        while candidates:
            engine = candidates.popleft()
            if engine.connected or engine.alive or engine.client not in self._by_client:
                continue
            engine.waits_for.discard(engine.client)
            if engine.waits_for:
                continue
            leased = self._pool.leases.held_by([engine.client], self._pool.table.space_of)
            if leased:
                self._emit(LeaseBroken(now, engine.client, "process_gone", leased))
            self._release(engine, now)
            gone.append(engine.client)
            candidates.extend(self._end_waits(engine.client))
        return gone

    def _release(self, engine: Engine, now: float) -> None:
        """Release everything of an engine, which no process can access."""
        self.read_operations(engine, now)
        blocks, size = self._storing.release_all(engine)
        self._pool.table.names.append(EngineEnd(engine.client))
        self._pool.leases.remove(engine.client)
        self._memory.retire_area(engine.client)
        del self._by_client[engine.client]
        if engine.gateway != TIER_GATEWAY:
            self._pool.spaces.released(engine.spaces)
        self._emit(EngineReleased(now, engine.client, engine.pid, engine.group, blocks, size))


# ---- checks of attach requests


def _check_gateway(message: Attach, gateway: str) -> None:
    """Raise ProtocolError unless all requested spaces belong to `gateway`.

    Only the engines that a gateway attaches may use the gateway's spaces.
    """
    for at, request in enumerate(message.spaces):
        if request.space.gateway == gateway:
            continue
        owners = f"engines of the {gateway} gateway" if gateway else "engines of the engine socket"
        raise ProtocolError(
            Code.BAD_SPACE,
            f"expected {gateway!r}, got {request.space.gateway[:32]!r}: {owners} may use only their own spaces",
            f"spaces[{at}].space.gateway",
        )


def _check_attach(
    message: Attach, pid: int, engines: Mapping[int, Engine], pool: Pool, max_clients: int, gateway: str
) -> None:
    """Raise ProtocolError for an attachment that exceeds a limit, or whose group or spaces cannot be served."""
    if len(engines) >= max_clients:
        raise ProtocolError(Code.TOO_MANY_CLIENTS, f"at most {max_clients} engines are served")
    share = max(64, max_clients // 2)
    if sum(engine.pid == pid for engine in engines.values()) >= share:
        raise ProtocolError(
            Code.TOO_MANY_CLIENTS, f"at most {share} attachments of one process are served, lost ones included"
        )
    if not 1 <= len(message.group) <= MAX_GROUP_CHARACTERS or not message.group.isprintable():
        raise ProtocolError(Code.BAD_GROUP, f"expected 1 to {MAX_GROUP_CHARACTERS} printable characters", "group")
    if message.group == TIER_MOVER and gateway != TIER_GATEWAY:
        raise ProtocolError(
            Code.BAD_GROUP, f"expected another name: {TIER_MOVER!r} is the data plane's own group", "group"
        )
    _check_spaces(message, pid, engines, pool, least=0 if gateway else 1)
    refusal = pool.table.names.refusal(pid, (request.space for request in message.spaces))
    if refusal is not None:
        raise ProtocolError(Code.BAD_SPACE, refusal, "spaces")


def _check_spaces(message: Attach, pid: int, engines: Mapping[int, Engine], pool: Pool, *, least: int) -> None:
    if not least <= len(message.spaces) <= MAX_SPACES_PER_ENGINE:
        raise ProtocolError(
            Code.BAD_SPACE, f"expected {least} to {MAX_SPACES_PER_ENGINE} spaces, got {len(message.spaces)}", "spaces"
        )
    for at, request in enumerate(message.spaces):
        pool.spaces.check(request.space, f"spaces[{at}].space")
    identities = {request.space.identity() for request in message.spaces}
    if len(identities) != len(message.spaces):
        raise ProtocolError(Code.BAD_SPACE, "expected each space once", "spaces")
    process_spaces = [engine.spaces for engine in engines.values() if engine.pid == pid]
    if len(message.spaces) + sum(map(len, process_spaces)) <= MAX_SPACES_PER_PROCESS:
        return
    numbers = [pool.spaces.known(request.space) for request in message.spaces]
    attached = set().union(*process_spaces, filter(None, numbers))
    if len(attached) + numbers.count(None) > MAX_SPACES_PER_PROCESS:
        raise ProtocolError(
            Code.BAD_SPACE,
            f"expected at most {MAX_SPACES_PER_PROCESS} spaces in all attachments of one process",
            "spaces",
        )


def _resumable(engine: Engine | None, message: Attach, pid: int, pool: Pool, gateway: str) -> Engine | None:
    """Return `engine` if the attach resumes it (same process, memory, group and spaces), else None.

    A process without a pid cannot prove that it is the same process, unless it comes through a gateway: the gateway
    runs in this process and is trusted.
    """
    if engine is None or engine.connected or engine.expelled or not engine.alive or not (pid or gateway):
        return None
    if engine.gateway != gateway:
        return None
    memory = pool.table.memory.cells[H_MEMORY]
    requested = [(request.space.identity(), request.writes) for request in message.spaces]
    had = [(space.identity(), writes) for space, writes in zip(engine.space_list, engine.spaces.values(), strict=True)]
    is_same = (engine.pid, engine.group, memory, had) == (pid, message.group, message.resume_memory, requested)
    return engine if is_same and memory else None
