"""Expel, kill and readmit engines of a node."""

from app.errors import FieldError, Invalid
from app.schemas.fleet.nodes import ExpelAnswer, ExpelPost
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.services.fleet.targets import Targets
from dataplane.protocol.control import Expel, Expelled


class EngineExpulsion:
    def __init__(self, targets: Targets, changes: Changes) -> None:
        self._targets = targets
        self._changes = changes

    async def expel(self, name: str, client: int, asked: ExpelPost, by: Principal) -> ExpelAnswer:
        """Ask a node to expel the process of one of its engines, or to let it attach again.

        Raises NotFound, Invalid, NodeUnreachable, NodeRefused.
        """
        if not asked.on and (asked.force or asked.kill):
            message = "expected true with force or kill"
            raise Invalid(f"on: {message}", [FieldError("on", message)])
        node = self._targets.node(name)
        self._targets.operations.check(node)
        verb = "expel" if asked.on else "readmit"
        after = {"client": client, "force": asked.force, "kill": asked.kill}
        await self._changes.note(verb, "node", name, after, by)
        told = await self._targets.operations.ask(
            node, lambda nonce: Expel(nonce, client, asked.on, asked.force, asked.kill), Expelled
        )
        return ExpelAnswer(
            node=name,
            pid=told.pid,
            clients=told.clients,
            leased_blocks=told.leased_blocks,
            dropped=told.dropped,
            killed=told.killed,
            quarantined_bytes=told.quarantined_bytes,
            waits_for_pids=told.waits_for_pids,
        )
