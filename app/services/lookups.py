"""What nodes have of a prefix, asked of them; nothing is used or moved by asking."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from app.ingest.fleet import Node
from app.schemas.actions import (
    LocateAnswer,
    LookupAnswer,
    LookupPost,
    NodeAction,
    NodeLookup,
    Place,
    SpaceLookup,
)
from app.services import checks
from app.services.callers import Caller
from app.services.chains import SOURCES, Chain, given, resolved
from app.services.targets import Said, Targets
from app.services.tokenizers import Tokenizers
from dataplane.protocol.control import Looked, Lookup, SpaceHits
from dataplane.protocol.salts import DEFAULT_TENANT

MAX_SPACES_SHOWN = 100
Tiers = dict[str, int]


class Lookups:
    def __init__(self, targets: Targets, tokenizers: Tokenizers) -> None:
        self._targets = targets
        self._tokenizers = tokenizers

    async def look_up(self, asked: LookupPost, by: Caller) -> LookupAnswer:
        """Raises Invalid, Forbidden, NodeUnreachable."""
        chain, said = await self._ask(asked, by)
        items = [_node(each, asked.chunk_tokens) for each in said]
        return LookupAnswer(items, len(items), len(chain.keys), asked.chunk_tokens, chain.tokenizer)

    async def locate(self, asked: LookupPost, by: Caller) -> LocateAnswer:
        """Nodes that hold the start of a prefix, who holds most first. Raises Invalid, Forbidden, NodeUnreachable."""
        chain, said = await self._ask(asked, by)
        items = [
            Place(
                node=each.node.name,
                hit_tokens=found.hit_tokens,
                hit_chunks=found.hit_chunks,
                engine_socket=each.node.engine_socket if by.salts is None else "",
                control_url=each.node.control_url if by.salts is None else "",
            )
            for each in said
            if sum((found := _node(each, asked.chunk_tokens)).hit_chunks.values())
        ]
        # As much of it in a nearer tier is worth more; tiers are told from the nearest on.
        items.sort(
            key=lambda place: (-sum(place.hit_chunks.values()), *(-n for n in place.hit_chunks.values()))
        )
        silent = [NodeAction(each.node.name, None, each.error) for each in said if each.answer is None]
        return LocateAnswer(items, len(items), len(chain.keys), asked.chunk_tokens, chain.tokenizer, silent)

    async def _ask(self, asked: LookupPost, by: Caller) -> tuple[Chain, list[Said[list[SpaceHits]]]]:
        faults = checks.Faults()
        tenant = DEFAULT_TENANT if asked.tenant is None else asked.tenant
        salt = faults.check("tenant", lambda: checks.tenant(tenant))
        model = faults.check("model", lambda: checks.model(asked.model))
        if len(given(asked)) != 1:
            faults.add("tokens", f"expected exactly one of {', '.join(SOURCES)}")
        faults.stop()
        assert salt is not None
        by.check_salt(salt)
        chain = await resolved(asked, model, salt, self._tokenizers, by)
        nodes = self._targets.named(asked)
        packed = b"".join(chain.keys)
        said = await self._targets.each(nodes, lambda node: self.spaces(node, asked.model, packed, salt))
        if by.salts is not None:
            said = [replace(each, answer=_held(each.answer)) for each in said]
        return chain, said

    async def spaces(self, node: Node, model: str, keys: bytes, salt: str) -> list[SpaceHits]:
        """What each of a node's spaces of a model has of a chain. Raises NodeUnreachable, NodeRefused."""
        found: list[SpaceHits] = []
        after = 0
        while True:
            question = Lookup("", model, keys, salt, after)
            part = await self._part(node, question)
            found += part.spaces
            if part.next <= after:
                return found
            after = part.next

    async def _part(self, node: Node, question: Lookup) -> Looked:
        return await self._targets.operations.ask(
            node, lambda nonce: msgspec.structs.replace(question, nonce=nonce), Looked
        )


def _held(spaces: Sequence[SpaceHits] | None) -> list[SpaceHits] | None:
    """Of what spaces have, the part that tells a tenant nothing of others: without kinds of engines that hold nothing
    of its chain. Of the kinds that do, every rank counts."""
    if spaces is None:
        return None
    holding = {_kind(each) for each in spaces if _sum(each.resident) or _sum(each.hits)}
    return [each for each in spaces if _kind(each) in holding]


def _node(said: Said[list[SpaceHits]], chunk_tokens: int) -> NodeLookup:
    spaces = said.answer or []
    hits, resident = _served(spaces)
    return NodeLookup(
        node=said.node.name,
        hit_tokens={tier: chunks * chunk_tokens for tier, chunks in hits.items()},
        hit_chunks=hits,
        resident_chunks=resident,
        spaces=[_space(each) for each in spaces[:MAX_SPACES_SHOWN]],
        error=said.error,
    )


def _served(spaces: Iterable[SpaceHits]) -> tuple[Tiers, Tiers]:
    """An engine is served what all its ranks, stages and groups have; the best kind of engine counts."""
    kinds: dict[tuple[object, ...], list[SpaceHits]] = {}
    for each in spaces:
        kinds.setdefault(_kind(each), []).append(each)
    hits = max((_least(each.hits for each in kind) for kind in kinds.values()), key=_sum, default={})
    resident = max((_least(each.resident for each in kind) for kind in kinds.values()), key=_sum, default={})
    return hits, resident


def _kind(each: SpaceHits) -> tuple[object, ...]:
    space = each.space
    return space.revision, space.layout, space.dtype, space.world_size


def _least(tiers: Iterable[Tiers]) -> Tiers:
    return min(tiers, key=_sum)


def _sum(tiers: Tiers) -> int:
    return sum(tiers.values())


def _space(each: SpaceHits) -> SpaceLookup:
    space = each.space
    return SpaceLookup(
        space=each.identity,
        revision=space.revision,
        layout=space.layout,
        dtype=space.dtype,
        kv_group=space.kv_group,
        world_size=space.world_size,
        pipeline_stage=space.pipeline_stage,
        rank=space.rank,
        hits=each.hits,
        resident=each.resident,
    )
