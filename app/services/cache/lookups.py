"""Look-ups: ask nodes which blocks of a prefix they hold. A look-up does not count as a use and moves no block."""

from collections.abc import Callable, Iterable, Sequence

from app.ingest.fleet import FleetNode
from app.push.node_requests import NodeReply
from app.schemas.cache.actions import (
    LocateAnswer,
    LookupAnswer,
    LookupPost,
    NodeAction,
    NodeLookup,
    PrefixLocation,
    SpaceLookup,
)
from app.services.base import checks
from app.services.base.fields import answer
from app.services.base.principals import Principal
from app.services.fleet.targets import Targets
from app.services.records.chains import Chains, KeyChain, sources_of
from dataplane.protocol.control.lookups import Looked, LookupChain, SpaceHits
from dataplane.protocol.salts import DEFAULT_TENANT
from dataplane.protocol.spaces import kinds_of

MAX_SPACES_SHOWN = 100
Tiers = dict[str, int]


class Lookups:
    def __init__(self, targets: Targets, chains: Chains) -> None:
        self._targets = targets
        self._requests = targets.node_requests
        self._chains = chains

    async def look_up(self, request: LookupPost, by: Principal) -> LookupAnswer:
        """Return what each node holds of a prefix. Raises Invalid, Forbidden, NodeUnreachable."""
        chain, replies = await self._request_hits(request, by)
        items = [_node(reply, request.chunk_tokens, by) for reply in replies]
        return LookupAnswer(items, len(items), len(chain.keys), request.chunk_tokens, chain.tokenizer)

    async def locate(self, request: LookupPost, by: Principal) -> LocateAnswer:
        """Return the nodes that hold the start of a prefix, the one with the longest part first. Raises Invalid,
        Forbidden, NodeUnreachable."""
        chain, replies = await self._request_hits(request, by)
        items = [
            PrefixLocation(
                node=reply.node.name,
                hit_tokens=lookup.hit_tokens,
                hit_chunks=lookup.hit_chunks,
                engine_socket=reply.node.engine_socket if by.salts is None else "",
                control_url=reply.node.control_url if by.salts is None else "",
            )
            for reply in replies
            if sum((lookup := _node(reply, request.chunk_tokens, by)).hit_chunks.values())
        ]
        # Among equal numbers of chunks, those in a nearer tier count more; tiers are listed from the nearest on.
        items.sort(
            key=lambda location: (-sum(location.hit_chunks.values()), *(-n for n in location.hit_chunks.values()))
        )
        failed_nodes = [NodeAction(reply.node.name, None, reply.error) for reply in replies if reply.answer is None]
        return LocateAnswer(items, len(items), len(chain.keys), request.chunk_tokens, chain.tokenizer, failed_nodes)

    async def _request_hits(
        self, request: LookupPost, by: Principal
    ) -> tuple[KeyChain, list[NodeReply[list[SpaceHits]]]]:
        faults = checks.Faults()
        tenant = DEFAULT_TENANT if request.tenant is None else request.tenant
        salt = faults.check("tenant", lambda: checks.tenant(tenant))
        model = faults.check("model", lambda: checks.model(request.model))
        if len(sources_of(request)) != 1:
            faults.add("tokens", f"expected exactly one of {', '.join(LookupPost.EXACTLY_ONE)}")
        faults.stop()
        assert salt is not None
        by.check_salt(salt)
        chain = await self._chains.of(request, model, salt, by)
        nodes = self._targets.selected(request)
        packed = b"".join(chain.keys)
        replies = await self._requests.each(nodes, lambda node: self.spaces(node, request.model, packed, salt))
        return chain, replies

    async def spaces(self, node: FleetNode, model: str, keys: bytes, salt: str) -> list[SpaceHits]:
        """Return what each space of a model on a node holds of a chain. Raises NodeUnreachable, NodeRefused."""
        spaces: list[SpaceHits] = []
        after = 0
        while True:
            question = LookupChain("", model, keys, salt, after)
            part = await self._requests.ask(node, question, Looked)
            spaces += part.spaces
            if part.next <= after:
                return spaces
            after = part.next


def _without_empty_kinds(spaces: Sequence[SpaceHits]) -> list[SpaceHits]:
    """Return only spaces that reveal nothing about other tenants: kinds of engines that hold nothing of the chain are
    left out. For the other kinds, all ranks, stages and groups are kept."""
    by_identity = {space_hits.identity: space_hits for space_hits in spaces}
    shown: set[str] = set()
    for kind in kinds_of({space_hits.identity: space_hits.space for space_hits in spaces}, ()):
        identities = [identity for place in kind for identity in place]
        if any(_sum(by_identity[each].resident) or _sum(by_identity[each].hits) for each in identities):
            shown.update(identities)
    return [space_hits for space_hits in spaces if space_hits.identity in shown]


def _node(reply: NodeReply[list[SpaceHits]], chunk_tokens: int, by: Principal) -> NodeLookup:
    spaces = reply.answer or []
    shown = spaces if by.salts is None else _without_empty_kinds(spaces)
    hits, resident = _served(spaces) if shown else ({}, {})
    return NodeLookup(
        node=reply.node.name,
        hit_tokens={tier: chunks * chunk_tokens for tier, chunks in hits.items()},
        hit_chunks=hits,
        resident_chunks=resident,
        spaces=[_space(space_hits) for space_hits in shown[:MAX_SPACES_SHOWN]],
        error=reply.error,
    )


def _served(spaces: Iterable[SpaceHits]) -> tuple[Tiers, Tiers]:
    """Return hits and resident chunks. An engine can use only what all its ranks, stages and groups hold; the best kind
    of engine counts, of those that are attached if there are any."""
    by_identity = {space_hits.identity: space_hits for space_hits in spaces}
    attached = {identity for identity, space_hits in by_identity.items() if space_hits.engines}
    kinds = kinds_of({identity: space_hits.space for identity, space_hits in by_identity.items()}, attached)

    def best(of: Callable[[SpaceHits], Tiers]) -> Tiers:
        held = [min((_largest(of(by_identity[each]) for each in place) for place in kind), key=_sum) for kind in kinds]
        return _largest(held)

    return best(lambda space_hits: space_hits.hits), best(lambda space_hits: space_hits.resident)


def _largest(tiers: Iterable[Tiers]) -> Tiers:
    return max(tiers, key=_sum, default={})


def _sum(tiers: Tiers) -> int:
    return sum(tiers.values())


def _space(space_hits: SpaceHits) -> SpaceLookup:
    return answer(
        SpaceLookup, space_hits.space, space=space_hits.identity, hits=space_hits.hits, resident=space_hits.resident
    )
