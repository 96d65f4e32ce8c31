"""Cache operations of LMCache's HTTP interface, mapped to Larder: objects are blocks of the gateway's spaces.

There is no tier behind the pool: all objects are in `l1`, and `l2` is empty.
"""

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from cachetools import TTLCache

from app.errors import Invalid, LarderError, Malformed, NodeUnreachable, NotFound
from app.ingest.fleet import FleetNode
from app.observe.catalogue.fleet import SweepRequested
from app.schemas.base.fields import MAX_TOKENS
from app.schemas.cache.actions import SweepPost
from app.schemas.lmcache.objects import (
    ChecksumPost,
    Json,
    LmcacheClearPost,
    ObjectEntry,
    ObjectKey,
    ObjectsDelete,
    ObjectsDeleted,
    ObjectsListed,
    PrefetchPost,
    Tier,
)
from app.services.base import checks
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.services.cache.actions import Actions
from app.services.cache.blocks import BlockService
from app.services.cache.lookups import Lookups
from app.services.fleet.targets import Targets
from app.services.records.chains import Chains
from dataplane.protocol.control.lookups import MAX_LISTED_BLOCKS, CachedBlock, ListBlocks, SpaceHits
from dataplane.protocol.control.nodes import DescribeNode, Description
from dataplane.protocol.control.scopes import ClearGateway, Swept
from dataplane.protocol.control.verification import DigestEngine, EngineDigests
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS, KEY_BYTES, TokenError
from dataplane.protocol.salts import check_salt, shown
from dataplane.protocol.spaces import LMCACHE
from dataplane.protocol.stats.gateways import GatewayInstance

MAX_DELETED = 10_000
MAX_PREFETCHES = 10_000
PREFETCH_TTL_S = 600.0
_BATCH = 4096
"""Largest number of keys in one request or sweep."""
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*", re.ASCII)
_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TOKEN = re.compile(r"(0|[1-9][0-9]{0,5})\.([A-Za-z0-9_-]*)", re.ASCII)
_NO_L2 = "no L2 adapters configured"
_Named = tuple[str, int, int]
"""Key in hex, rank in LMCache's encoding, KV-cache group."""


class LmcacheUnavailable(NodeUnreachable):
    """The requested object is not available."""


class LmcacheUnsupported(LarderError):
    """The operation is not supported for this object."""


@dataclass(frozen=True)
class _Prefetch:
    found_keys: int
    total_keys: int


def kv_rank(world_size: int, rank: int) -> int:
    """Return world size and rank in LMCache's encoding, eight bits each; for larger worlds sixteen bits each, above the
    lower 32."""
    if world_size < 256:
        return world_size << 24 | rank << 16 | world_size << 8 | rank
    return world_size << 48 | rank << 32


class LmcacheObjects:
    def __init__(
        self,
        targets: Targets,
        changes: Changes,
        blocks: BlockService,
        actions: Actions,
        lookups: Lookups,
        chains: Chains,
    ) -> None:
        self._requests = targets.node_requests
        self._changes = changes
        self._blocks = blocks
        self._actions = actions
        self._lookups = lookups
        self._chains = chains
        self._prefetches: TTLCache[str, _Prefetch] = TTLCache(MAX_PREFETCHES, PREFETCH_TTL_S)

    # ---- objects

    async def list(
        self, tier: Tier, model: str | None, page_size: int, page_token: str, by: Principal
    ) -> ObjectsListed:
        """Return a page of readable objects. Raises Malformed, LmcacheUnavailable, NodeUnreachable."""
        _check_tier(tier, ("l1", "l2"))
        if tier == "l2":
            raise LmcacheUnavailable(_NO_L2)
        try:
            turn, cursor = _turn(page_token, by)
            salt = None if by.salts is None else sorted(by.salts)[turn]
            query = ListBlocks("", tenant=salt, model=model, gateway=LMCACHE)
            page = await self._blocks.listed(query, self._requests.connected(), page_size, cursor)
        except Invalid:
            raise Malformed("page_token: expected next_page_token of a page of this list") from None
        if page.failed_nodes:  # a client that copies or deletes by this list must not mistake a part for the whole
            raise NodeUnreachable(page.failed_nodes[0].error)
        entries = [
            ObjectEntry(
                ObjectKey(block.key, block.model, kv_rank(block.world_size, block.rank), block.kv_group, block.tenant),
                block.bytes,
            )
            for _, block in page.items
            if block.state == "ready"
        ]
        return ObjectsListed("dram", False, entries, _after(turn, page.next_cursor, by))

    async def delete(self, request: ObjectsDelete, by: Principal) -> ObjectsDeleted:
        """Make blocks unreadable, including their successors in their chains. Without `force`, leased blocks are
        skipped; blocks under permanent pins always are. Raises Malformed, Forbidden, LmcacheUnavailable,
        NodeUnreachable."""
        if len(request.keys) > MAX_DELETED:
            raise Malformed(f"too many keys in a single request (limit={MAX_DELETED}, got={len(request.keys)})")
        if request.tier == "l2":
            raise LmcacheUnavailable(_NO_L2)
        by_owner = _by_owner(request.keys)
        for salt, _ in by_owner:
            by.check_salt(salt)
        deleted: set[tuple[str, str, _Named]] = set()
        skipped: set[tuple[str, str, _Named]] = set()
        for (salt, model), named in by_owner.items():
            spaces: dict[str, set[str]] = {}
            for block in await self._readable(salt, model, {name for name, _, _ in named}):
                name = _name(block)
                if name not in named:
                    continue
                if (block.leases and not request.force) or block.strength == "permanent":
                    skipped.add((salt, model, name))
                else:
                    deleted.add((salt, model, name))
                    spaces.setdefault(block.space, set()).add(block.key)
            for space, keys in spaces.items():
                await self._invalidate(salt, space, sorted(keys), by)
        return ObjectsDeleted(len(deleted), len(skipped - deleted), True)

    async def _readable(self, salt: str, model: str, keys: Iterable[str]) -> Sequence[CachedBlock]:
        """Return the readable blocks of these keys on all nodes."""
        nodes = self._requests.connected()
        blocks: list[CachedBlock] = []
        ordered = sorted(keys)
        for at in range(0, len(ordered), _BATCH):
            packed = bytes.fromhex("".join(ordered[at : at + _BATCH]))
            query = ListBlocks("", limit=MAX_LISTED_BLOCKS, tenant=salt, model=model, keys=packed, gateway=LMCACHE)
            replies = await self._requests.each(nodes, partial(self._blocks.of_node, query=query))
            _check_failures(reply.error for reply in replies)
            blocks += [block for reply in replies for block in reply.answer or () if block.state == "ready"]
        return blocks

    async def _invalidate(self, salt: str, space: str, keys: Sequence[str], by: Principal) -> None:
        for at in range(0, len(keys), _BATCH):
            request = SweepPost(tenant=shown(salt), space=space, keys=list(keys[at : at + _BATCH]))
            done = await self._actions.sweep("invalidate", request, by)
            _check_failures(item.error for item in done.items)

    # ---- everything

    async def clear(self, request: LmcacheClearPost, by: Principal) -> Json:
        """Drop what the gateway's clients stored; blocks that are leased or being written stay, unless `force`. Raises
        Malformed, Forbidden, NodeUnreachable."""
        _check_tier(request.tier, ("l1",))
        by.check_whole("clearing")
        nodes = self._requests.connected()
        node_names = [node.name for node in nodes]
        audited = {"gateway": LMCACHE, "force": request.force, "nodes": node_names}
        scope = "everything of LMCache's clients"
        event = SweepRequested("clear", scope, node_names)
        await self._changes.note("clear", "blocks", scope, audited, by, event)
        replies = await self._requests.ask_all(nodes, ClearGateway("", LMCACHE, request.force), Swept)
        _check_failures(reply.error for reply in replies)
        return {"status": "ok", "cleared": {"tier": "l1"}}

    # ---- prefetches

    async def prefetch(self, request: PrefetchPost, by: Principal) -> Json:
        """Find out how much of a prefix is in `l1`; there is no tier to load the rest from. Raises Malformed,
        Forbidden, LmcacheUnavailable, NodeUnreachable."""
        if (request.source_tier, request.target_tier) != ("l2", "l1"):
            raise Malformed(
                f"unsupported prefetch direction {request.source_tier!r}->{request.target_tier!r}; only 'l2'->'l1'"
            )
        if len(request.token_ids) > MAX_TOKENS:
            raise Malformed(f"token_ids: expected at most {MAX_TOKENS}, got {len(request.token_ids)}")
        faults = checks.Faults()
        faults.check("cache_salt", lambda: check_salt(request.cache_salt, "cache_salt"))
        faults.check("model_name", lambda: checks.model(request.model_name))
        if faults.errors:
            raise Malformed(f"{faults.errors[0].path}: {faults.errors[0].message}")
        by.check_salt(request.cache_salt)
        try:
            keys = await self._chains.of_tokens(request.token_ids, request.cache_salt, DEFAULT_CHUNK_TOKENS, by)
        except TokenError as error:
            raise Malformed(f"token_ids: {error}") from None
        resident = await self._resident(request, b"".join(keys) or bytes(KEY_BYTES))
        if resident is None and by.salts is not None:
            resident = 0  # a limited caller must not learn whether other tenants have workers of the model
        if resident is None:
            raise LmcacheUnavailable(
                f"no layout registered for model_name={request.model_name!r} world_size={request.world_size}"
            )
        if not keys:
            return {"chunks": 0, "status": "noop"}
        request_id = uuid.uuid4().hex
        self._prefetches[request_id] = _Prefetch(resident, len(keys) * request.world_size)
        return {"request_id": request_id, "chunks": len(keys), "status": "submitted"}

    def prefetched(self, request_id: str) -> Json:
        """Return the result of a prefetch, once. Raises NotFound."""
        prefetch = self._prefetches.pop(request_id, None)
        if prefetch is None:
            raise NotFound(f"unknown prefetch request_id={request_id!r} (already completed or never submitted)")
        return {
            "request_id": request_id,
            "status": "completed",
            "found_keys": prefetch.found_keys,
            "total_keys": prefetch.total_keys,
        }

    # ---- engines' own memory

    async def checksums(self, request: ChecksumPost, by: Principal) -> Json:
        """Return MD5 sums of blocks in the memory of an engine for which a node copies. Raises Malformed, Forbidden,
        NotFound, LmcacheUnsupported, NodeRefused, NodeUnreachable."""
        by.check_whole("an engine's memory")
        node, instance = await self._engine(request.instance_id)
        if not instance.copies:
            raise LmcacheUnsupported("checksum not supported for this engine type")
        if not request.block_ids:
            raise Malformed("block_ids is required")
        if request.chunk_size <= 0:
            raise Malformed("chunk_size must be positive")
        answer = await self._requests.ask(
            node,
            DigestEngine("", LMCACHE, request.instance_id, request.block_ids, request.chunk_size, request.layerwise),
            EngineDigests,
        )
        layers = {f"layer_{number}": digests for number, digests in enumerate(answer.digests)}
        return {
            "status": "success",
            "chunk_size": request.chunk_size,
            "num_chunks": -(-len(request.block_ids) // request.chunk_size),
            "chunk_checksums": layers if request.layerwise else answer.digests[0],
            "layerwise": request.layerwise,
            "block_id_ranges": _ranges(request.block_ids),
        }

    async def _engine(self, number: int) -> tuple[FleetNode, GatewayInstance]:
        """Return a worker and its node, as nodes report them now. Raises NotFound, NodeUnreachable."""
        replies = await self._requests.ask_all(self._requests.connected(), DescribeNode(""), Description)
        for reply in replies:
            gateway = None if reply.answer is None else reply.answer.stats.gateway
            for instance in () if gateway is None else gateway.instances:
                if instance.instance == number:
                    return reply.node, instance
        raise NotFound(f"instance_id {number} not registered")

    async def _resident(self, request: PrefetchPost, keys: bytes) -> int | None:
        """Return the number of blocks of all ranks on the node that has most of them; None if no worker of the model
        ever connected."""
        replies = await self._requests.each(
            self._requests.connected(),
            lambda node: self._lookups.spaces(node, request.model_name, keys, request.cache_salt),
        )
        _check_failures(reply.error for reply in replies)
        best: int | None = None
        for reply in replies:
            layouts: dict[tuple[str, str], int] = {}
            for hits in reply.answer or ():
                if _is_of(hits, request.world_size):
                    layout = (hits.space.layout, hits.space.dtype)
                    layouts[layout] = layouts.get(layout, 0) + sum(hits.resident.values())
            best = max([*layouts.values(), *([] if best is None else [best])], default=None)
        return best


def _turn(page_token: str, by: Principal) -> tuple[int, str]:
    """Return the index of the tenant that is being listed, among those that the caller is limited to, and the cursor
    within it. Raises Invalid."""
    if by.salts is None or not page_token:
        return 0, page_token
    match = _TOKEN.fullmatch(page_token)
    if match is None or int(match[1]) >= len(by.salts):
        raise Invalid("page_token: expected next_page_token of a page of this list")
    return int(match[1]), match[2]


def _after(turn: int, cursor: str, by: Principal) -> str | None:
    """Return the token that `_turn` parses; None on the last page."""
    if by.salts is None:
        return cursor or None
    if not cursor:
        turn += 1
    return f"{turn}.{cursor}" if turn < len(by.salts) else None


def _is_of(hits: SpaceHits, world_size: int) -> bool:
    return hits.space.gateway == LMCACHE and hits.space.world_size == world_size


def _check_tier(tier: Tier, supported: tuple[Tier, ...]) -> None:
    if tier not in supported:
        supported_text = " and ".join(map(repr, supported))
        raise Malformed(f"tier {tier!r} not supported; only {supported_text}")


def _by_owner(keys: Sequence[ObjectKey]) -> dict[tuple[str, str], set[_Named]]:
    """Return names of blocks by salt and model. Hashes that cannot be a key of Larder are ignored. Raises Malformed."""
    names_by_owner: dict[tuple[str, str], set[_Named]] = {}
    for at, key in enumerate(keys):
        faults = checks.Faults()
        faults.check("cache_salt", lambda key=key: check_salt(key.cache_salt, "cache_salt"))  # type: ignore[misc]
        if _HEX.fullmatch(key.chunk_hash_hex) is None:
            faults.add("chunk_hash_hex", f"expected hex digits, got {key.chunk_hash_hex[:80]!r}")
        if "@" in key.model_name:
            faults.add("model_name", f"must not contain '@' (got {key.model_name[:80]!r})")
        if key.object_group_id < 0:
            faults.add("object_group_id", f"must be >= 0 (got {key.object_group_id})")
        if faults.errors:
            raise Malformed(f"keys[{at}]: {faults.errors[0].path}: {faults.errors[0].message}")
        name = key.chunk_hash_hex.lower()
        if _KEY.fullmatch(name):
            owner = (key.cache_salt, key.model_name)
            names_by_owner.setdefault(owner, set()).add((name, key.kv_rank, key.object_group_id))
    return names_by_owner


def _name(block: CachedBlock) -> _Named:
    return block.key, kv_rank(block.world_size, block.rank), block.kv_group


def _ranges(numbers: Sequence[int]) -> list[int | list[int]]:
    """Return the numbers in order, with runs of three or more consecutive ones as [first, last]."""
    ranges: list[int | list[int]] = []
    run: list[int] = []
    for number in [*numbers, None]:
        if run and number != run[-1] + 1:
            ranges += [[run[0], run[-1]]] if len(run) > 2 else run
            run = []
        if number is not None:
            run.append(number)
    return ranges


def _check_failures(errors: Iterable[str | None]) -> None:
    """Raise NodeUnreachable if a node failed: LMCache's clients know one server and no partial success."""
    for error in errors:
        if error is not None:
            raise NodeUnreachable(error)
