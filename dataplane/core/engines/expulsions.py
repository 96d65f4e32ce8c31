"""Expel engines: an operator ends the claims of a process that still runs.

The leases of an expelled process no longer count, so the blocks that it held can be evicted, and the process cannot
attach again. Blocks that it was writing stay quarantined until the process is proven gone, as for every lost engine,
because it still maps its segments. All attachments of one process are expelled together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.core.engines.engines import MAX_SHOWN_PIDS, Engine, Expulsion, charge_of, name_of_engine
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.nodes import Expelled
from dataplane.protocol.events import EngineExpelled, EngineKilled, EngineReadmitted, Event

if TYPE_CHECKING:
    from dataplane.core.pool.pool import Pool


@dataclass(frozen=True, slots=True)
class Expulsions:
    """Expel engines and let their processes attach again."""

    pool: Pool
    engines: Mapping[int, Engine]
    emit: Callable[[Event], None]

    def attachments(self, client: int) -> list[Engine]:
        """Return all attachments of the process that attached as `client`. Raise ProtocolError on failure."""
        engine = self.engines.get(client)
        if engine is None:
            raise ProtocolError(Code.UNKNOWN_ENGINE, f"no engine has the client number {client}", "client")
        if engine.gateway:
            raise ProtocolError(
                Code.UNSUPPORTED,
                f"engine {client} belongs to the {engine.gateway} gateway, which holds its leases itself: end the "
                "worker's process, or clear the gateway",
                "client",
            )
        attached = [
            candidate
            for candidate in self.engines.values()
            if not candidate.gateway and candidate.is_made_by(engine.pid, engine.started)
        ]
        return attached or [engine]

    def expel(self, client: int, now: float, *, force: bool) -> int:
        """Drop the leases of a process, and return the number of blocks that it held. Raise ProtocolError on failure.

        Without `force`, a process that holds blocks is not expelled. The caller ends the connections of the process.
        """
        pool = self.pool
        engines = self.attachments(client)
        clients = [engine.client for engine in engines]
        pool.leases.set_expelled(clients)
        held_blocks = pool.leases.held_by(clients, pool.table.space_of)
        if held_blocks and not force:
            pool.leases.set_expelled(clients, expelled=False)
            raise ProtocolError(
                Code.HOLDS_LEASES,
                f"process {engines[0].pid} holds {held_blocks} blocks: with force it may read bytes of blocks that "
                "replace them; kill it instead where that can be done",
                "force",
            )
        for engine in engines:
            pool.leases.remove(engine.client)
            engine.expelled = Expulsion.BARRED
            pool.table.names.append(name_of_engine(engine))
            self.emit(EngineExpelled(now, engine.client, engine.pid, engine.group, held_blocks))
        return held_blocks

    def readmit(self, client: int, now: float) -> None:
        """Let an expelled process attach again. Its old attachments stay expelled. Raise ProtocolError on failure."""
        for engine in self.attachments(client):
            if engine.expelled is Expulsion.BARRED:
                engine.expelled = Expulsion.READMITTED
                self.pool.table.names.append(name_of_engine(engine))
                self.emit(EngineReadmitted(now, engine.client, engine.pid, engine.group))

    def killed(self, client: int, now: float) -> None:
        """Publish that SIGKILL was sent to a process."""
        for engine in self.attachments(client):
            self.emit(EngineKilled(now, engine.client, engine.pid, engine.group))

    def held(self, client: int) -> int:
        """Return the number of blocks that a process holds now. Raise ProtocolError on failure."""
        clients = [engine.client for engine in self.attachments(client)]
        return self.pool.leases.held_by(clients, self.pool.table.space_of)

    def state(self, nonce: str, engines: list[Engine], leased_blocks: int, *, killed: bool) -> Expelled:
        """Return the state of the attachments of a process."""
        groups = {engine.group for engine in engines}
        waits = {engine.pid for engine in self.engines.values() if engine.alive and engine.group in groups}
        return Expelled(
            nonce=nonce,
            pid=engines[0].pid,
            clients=[engine.client for engine in engines],
            leased_blocks=leased_blocks,
            dropped=all(engine.expelled for engine in engines),
            killed=killed,
            quarantined_bytes=sum(charge_of(engine.expired) + charge_of(engine.reservations) for engine in engines),
            waits_for_pids=sorted(waits)[:MAX_SHOWN_PIDS],
        )
