"""Finds the records of engines' requests on the nodes."""

from app.ingest.fleet import FleetNode
from app.push.node_requests import NodeReply
from app.schemas.cache.requests import RequestAnswer, RequestList
from app.schemas.records.prefixes import NodeError
from app.services.base.fields import answer
from app.services.base.principals import Principal
from app.services.fleet.targets import Targets
from dataplane.protocol.control.requests import FindRequests, RequestRecord, RequestsFound
from dataplane.protocol.misses import MISS_REASONS
from dataplane.protocol.salts import shown


class RequestFinder:
    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._requests = targets.node_requests

    async def find(self, request: str, node: str | None, by: Principal) -> RequestList:
        """Return the records of a request that the caller may see. Raises NotFound, NodeUnreachable."""
        nodes = self._targets.one_or_all(node)
        replies = await self._requests.each(nodes, lambda target: self._records(target, request))
        records = [
            _answer(reply, record) for reply in replies for record in reply.answer or () if by.sees(record.tenant)
        ]
        failed_nodes = [NodeError(reply.node.name, reply.error) for reply in replies if reply.error is not None]
        return RequestList(sorted(records, key=lambda record: -record.at), len(records), failed_nodes)

    async def _records(self, node: FleetNode, request: str) -> list[RequestRecord]:
        return (await self._requests.ask(node, FindRequests("", request), RequestsFound)).requests


def _answer(reply: NodeReply[list[RequestRecord]], record: RequestRecord) -> RequestAnswer:
    return answer(
        RequestAnswer,
        record,
        node=reply.node.name,
        tenant=shown(record.tenant),
        cause_at=record.cause_at or None,
        meaning=MISS_REASONS.get(record.reason, ""),
    )
