"""Expel, kill and readmit engines of a node."""

from app.errors import Invalid
from app.observe.catalogue.fleet import EngineExpelRequested, EngineReadmitRequested
from app.schemas.fleet.nodes import ExpelAnswer, ExpelPost
from app.services.base.changes import Changes
from app.services.base.fields import answer
from app.services.base.principals import Principal
from app.services.fleet.targets import Targets
from dataplane.protocol.control.nodes import Expel, Expelled


class EngineExpulsion:
    def __init__(self, targets: Targets, changes: Changes) -> None:
        self._targets = targets
        self._changes = changes

    async def expel(self, name: str, client: int, request: ExpelPost, by: Principal) -> ExpelAnswer:
        """Ask a node to expel the process of one of its engines, or to let it attach again.

        Raises NotFound, Invalid, NodeUnreachable, NodeRefused.
        """
        if not request.on and (request.force or request.kill):
            raise Invalid.at("on", "expected true with force or kill")
        node = self._targets.node(name)
        self._targets.node_requests.check(node)
        verb = "expel" if request.on else "readmit"
        after = {"client": client, "force": request.force, "kill": request.kill}
        event = (
            EngineExpelRequested(client, request.force, request.kill) if request.on else EngineReadmitRequested(client)
        )
        await self._changes.note(verb, "node", name, after, by, event, name)
        reply = await self._targets.node_requests.ask(
            node, Expel("", client, request.on, request.force, request.kill), Expelled
        )
        return answer(ExpelAnswer, reply, node=name)
