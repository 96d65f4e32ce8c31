"""What LMCache's HTTP interface does to the cache, said in Larder's words: objects are blocks of the gateway's spaces.

There is no tier behind the pool: everything is in `l1`, and `l2` has nothing.
"""

import asyncio
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.errors import Invalid, LarderError, Malformed, NodeUnreachable, NotFound
from app.ingest.fleet import Node
from app.schemas.actions import SweepPost
from app.schemas.lmcache import (
    ChecksumPost,
    ClearPost,
    Json,
    ObjectEntry,
    ObjectKey,
    ObjectsDelete,
    ObjectsDeleted,
    ObjectsListed,
    PrefetchPost,
    Tier,
)
from app.services import checks
from app.services.actions import Actions
from app.services.blocks import BlockService
from app.services.callers import Caller
from app.services.changes import Changes
from app.services.lookups import Lookups
from app.services.targets import Targets
from dataplane.protocol.control import (
    CachedBlock,
    ClearGateway,
    Describe,
    Description,
    DigestEngine,
    EngineDigests,
    ListBlocks,
    SpaceHits,
    Swept,
)
from dataplane.protocol.events import GatewayInstance
from dataplane.protocol.keys import KEY_BYTES, TokenError, chain
from dataplane.protocol.salts import check_salt, shown
from dataplane.protocol.spaces import LMCACHE

MAX_DELETED = 10_000
MAX_TOKENS = 1_000_000
MAX_PREFETCHES = 10_000
PREFETCH_TTL_S = 600.0
_BATCH = 4096
"""Keys that one question or sweep may name."""
_PAGE = 5000
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*", re.ASCII)
_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TOKEN = re.compile(r"([0-9]{1,6})\.(.*)", re.ASCII)
_NO_L2 = "no L2 adapters configured"
_Named = tuple[str, int, int]
"""Key in hex, rank as LMCache writes it, KV-cache group."""


class Unavailable(NodeUnreachable):
    """What was asked for is not there to be asked now."""


class Unsupported(LarderError):
    """There is no way to do this for what was named."""


@dataclass(frozen=True)
class _Prefetch:
    found_keys: int
    total_keys: int
    until: float


def kv_rank(world_size: int, rank: int) -> int:
    """A world and a rank as LMCache packs them, eight bits each; of larger worlds in sixteen bits, above its 32."""
    if world_size < 256:
        return world_size << 24 | rank << 16 | world_size << 8 | rank
    return world_size << 48 | rank << 32


class Lmcache:
    def __init__(
        self, targets: Targets, changes: Changes, blocks: BlockService, actions: Actions, lookups: Lookups
    ) -> None:
        self._targets = targets
        self._changes = changes
        self._blocks = blocks
        self._actions = actions
        self._lookups = lookups
        self._prefetches: OrderedDict[str, _Prefetch] = OrderedDict()

    # ---- objects

    async def list(
        self, tier: Tier, model: str | None, page_size: int, page_token: str, by: Caller
    ) -> ObjectsListed:
        """A page of what is readable. Raises Malformed, Unavailable, NodeUnreachable."""
        _check_tier(tier, ("l1", "l2"))
        if tier == "l2":
            raise Unavailable(_NO_L2)
        try:
            turn, cursor = _turn(page_token, by)
            whose = None if by.salts is None else sorted(by.salts)[turn]
            wanted = ListBlocks("", tenant=whose, model=model, gateway=LMCACHE)
            page = await self._blocks.listed(wanted, self._targets.operations.connected(), page_size, cursor)
        except Invalid:
            raise Malformed("page_token: expected next_page_token of a page of this list") from None
        if page.silent:  # who copies or deletes by this list must not take a part for the whole
            raise NodeUnreachable(page.silent[0].error)
        entries = [
            ObjectEntry(
                ObjectKey(
                    block.key,
                    block.model,
                    kv_rank(block.world_size, block.rank),
                    block.kv_group,
                    block.tenant,
                ),
                block.bytes,
            )
            for _, block in page.blocks
            if block.state == "ready"
        ]
        return ObjectsListed("dram", False, entries, _after(turn, page.next_cursor, by))

    async def delete(self, asked: ObjectsDelete, by: Caller) -> ObjectsDeleted:
        """Make blocks unreadable, and what follows them in their chains. Without `force`, those that are leased now
        are skipped; those under permanent pins always are. Raises Malformed, Forbidden, Unavailable,
        NodeUnreachable."""
        if len(asked.keys) > MAX_DELETED:
            raise Malformed(f"too many keys in a single request (limit={MAX_DELETED}, got={len(asked.keys)})")
        if asked.tier == "l2":
            raise Unavailable(_NO_L2)
        wanted = _by_owner(asked.keys)
        for salt, _ in wanted:
            by.check_salt(salt)
        deleted: set[tuple[str, str, _Named]] = set()
        skipped: set[tuple[str, str, _Named]] = set()
        for (salt, model), named in wanted.items():
            spaces: dict[str, set[str]] = {}
            for block in await self._readable(salt, model, {name for name, _, _ in named}):
                name = _name(block)
                if name not in named:
                    continue
                if (block.leases and not asked.force) or block.strength == "permanent":
                    skipped.add((salt, model, name))
                else:
                    deleted.add((salt, model, name))
                    spaces.setdefault(block.space, set()).add(block.key)
            for space, keys in spaces.items():
                await self._invalidate(salt, space, sorted(keys), by)
        return ObjectsDeleted(len(deleted), len(skipped - deleted), True)

    async def _readable(self, salt: str, model: str, keys: Iterable[str]) -> Sequence[CachedBlock]:
        """Blocks of these keys on all nodes."""
        nodes = self._targets.operations.connected()
        found: list[CachedBlock] = []
        ordered = sorted(keys)
        for at in range(0, len(ordered), _BATCH):
            packed = bytes.fromhex("".join(ordered[at : at + _BATCH]))
            wanted = ListBlocks("", tenant=salt, model=model, keys=packed, gateway=LMCACHE)
            cursor = ""
            while True:
                page = await self._blocks.listed(wanted, nodes, _PAGE, cursor)
                if page.silent:
                    raise NodeUnreachable(page.silent[0].error)
                found += [block for _, block in page.blocks if block.state == "ready"]
                cursor = page.next_cursor
                if not cursor:
                    break
        return found

    async def _invalidate(self, salt: str, space: str, keys: Sequence[str], by: Caller) -> None:
        for at in range(0, len(keys), _BATCH):
            asked = SweepPost(tenant=shown(salt), space=space, keys=list(keys[at : at + _BATCH]))
            done = await self._actions.sweep("invalidate", asked, by)
            _all_did(item.error for item in done.items)

    # ---- everything

    async def clear(self, asked: ClearPost, by: Caller) -> Json:
        """Drop what the gateway's clients stored; what is leased or being written stays, unless `force`. Raises
        Malformed, Forbidden, NodeUnreachable."""
        _check_tier(asked.tier, ("l1",))
        by.check_whole("clearing")
        nodes = self._targets.operations.connected()
        audited = {"gateway": LMCACHE, "force": asked.force, "nodes": [node.name for node in nodes]}
        await self._changes.note("clear", "blocks", "everything of LMCache's clients", audited, by)
        said = await self._targets.each(
            nodes,
            lambda node: self._targets.operations.ask(
                node, lambda nonce: ClearGateway(nonce, LMCACHE, asked.force), Swept
            ),
        )
        _all_did(each.error for each in said)
        return {"status": "ok", "cleared": {"tier": "l1"}}

    # ---- prefetches

    async def prefetch(self, asked: PrefetchPost, by: Caller) -> Json:
        """Find out what of a prefix is in `l1`; there is nowhere to load the rest from. Raises Malformed, Forbidden,
        Unavailable, NodeUnreachable."""
        if (asked.source_tier, asked.target_tier) != ("l2", "l1"):
            raise Malformed(
                f"unsupported prefetch direction {asked.source_tier!r}->{asked.target_tier!r}; only 'l2'->'l1'"
            )
        if len(asked.token_ids) > MAX_TOKENS:
            raise Malformed(f"token_ids: expected at most {MAX_TOKENS}, got {len(asked.token_ids)}")
        faults = checks.Faults()
        faults.check("cache_salt", lambda: check_salt(asked.cache_salt, "cache_salt"))
        faults.check("model_name", lambda: checks.model(asked.model_name))
        if faults.errors:
            raise Malformed(f"{faults.errors[0].path}: {faults.errors[0].message}")
        by.check_salt(asked.cache_salt)
        try:
            keys = await asyncio.to_thread(chain, asked.token_ids, asked.cache_salt)
        except TokenError as error:
            raise Malformed(f"token_ids: {error}") from None
        found = await self._resident(asked, b"".join(keys) or bytes(KEY_BYTES))
        if found is None and by.salts is not None:
            found = 0  # who may not know whose models run here is not told that nobody's does
        if found is None:
            raise Unavailable(
                f"no layout registered for model_name={asked.model_name!r} world_size={asked.world_size}"
            )
        if not keys:
            return {"chunks": 0, "status": "noop"}
        request_id = uuid.uuid4().hex
        now = time.monotonic()
        self._prefetches[request_id] = _Prefetch(found, len(keys) * asked.world_size, now + PREFETCH_TTL_S)
        while len(self._prefetches) > MAX_PREFETCHES or next(iter(self._prefetches.values())).until < now:
            self._prefetches.popitem(last=False)
        return {"request_id": request_id, "chunks": len(keys), "status": "submitted"}

    def prefetched(self, request_id: str) -> Json:
        """The result of a prefetch, once. Raises NotFound."""
        found = self._prefetches.pop(request_id, None)
        if found is None or found.until < time.monotonic():
            raise NotFound(
                f"unknown prefetch request_id={request_id!r} (already completed or never submitted)"
            )
        return {
            "request_id": request_id,
            "status": "completed",
            "found_keys": found.found_keys,
            "total_keys": found.total_keys,
        }

    # ---- engines' own memory

    async def checksums(self, asked: ChecksumPost, by: Caller) -> Json:
        """MD5 of blocks in the memory of an engine for which a node copies. Raises Malformed, Forbidden, NotFound,
        Unsupported, NodeRefused, NodeUnreachable."""
        by.check_whole("an engine's memory")
        node, instance = await self._engine(asked.instance_id)
        if not instance.copies:
            raise Unsupported("checksum not supported for this engine type")
        if not asked.block_ids:
            raise Malformed("block_ids is required")
        if asked.chunk_size <= 0:
            raise Malformed("chunk_size must be positive")
        answer = await self._targets.operations.ask(
            node,
            lambda nonce: DigestEngine(
                nonce, LMCACHE, asked.instance_id, asked.block_ids, asked.chunk_size, asked.layerwise
            ),
            EngineDigests,
        )
        layers = {f"layer_{number}": digests for number, digests in enumerate(answer.digests)}
        return {
            "status": "success",
            "chunk_size": asked.chunk_size,
            "num_chunks": -(-len(asked.block_ids) // asked.chunk_size),
            "chunk_checksums": layers if asked.layerwise else answer.digests[0],
            "layerwise": asked.layerwise,
            "block_id_ranges": _ranges(asked.block_ids),
        }

    async def _engine(self, number: int) -> tuple[Node, GatewayInstance]:
        """A worker and its node, as nodes know it at this moment. Raises NotFound, NodeUnreachable."""
        said = await self._targets.each(
            self._targets.operations.connected(),
            lambda node: self._targets.operations.ask(node, Describe, Description),
        )
        for each in said:
            gateway = None if each.answer is None else each.answer.stats.gateway
            for instance in () if gateway is None else gateway.instances:
                if instance.instance == number:
                    return each.node, instance
        raise NotFound(f"instance_id {number} not registered")

    async def _resident(self, asked: PrefetchPost, keys: bytes) -> int | None:
        """Blocks of all ranks on the node that has most of them; None when no worker of the model was ever there."""
        said = await self._targets.each(
            self._targets.operations.connected(),
            lambda node: self._lookups.spaces(node, asked.model_name, keys, asked.cache_salt),
        )
        _all_did(each.error for each in said)
        best: int | None = None
        for each in said:
            layouts: dict[tuple[str, str], int] = {}
            for hits in each.answer or ():
                if _is_of(hits, asked.world_size):
                    layout = (hits.space.layout, hits.space.dtype)
                    layouts[layout] = layouts.get(layout, 0) + sum(hits.resident.values())
            best = max([*layouts.values(), *([] if best is None else [best])], default=None)
        return best


def _turn(page_token: str, by: Caller) -> tuple[int, str]:
    """Which of the tenants that the caller is limited to is listed, one after another, and from where on. Raises
    Invalid."""
    if by.salts is None or not page_token:
        return 0, page_token
    match = _TOKEN.fullmatch(page_token)
    if match is None or int(match[1]) >= len(by.salts):
        raise Invalid("page_token: expected next_page_token of a page of this list")
    return int(match[1]), match[2]


def _after(turn: int, cursor: str, by: Caller) -> str | None:
    """What `_turn` reads; None on the last page."""
    if by.salts is None:
        return cursor or None
    if not cursor:
        turn += 1
    return f"{turn}.{cursor}" if turn < len(by.salts) else None


def _is_of(hits: SpaceHits, world_size: int) -> bool:
    return hits.space.gateway == LMCACHE and hits.space.world_size == world_size


def _check_tier(tier: Tier, supported: tuple[Tier, ...]) -> None:
    if tier not in supported:
        only = " and ".join(map(repr, supported))
        raise Malformed(f"tier {tier!r} not supported; only {only}")


def _by_owner(keys: Sequence[ObjectKey]) -> dict[tuple[str, str], set[_Named]]:
    """Names of blocks by salt and model. What cannot be a key of ours names nothing. Raises Malformed."""
    found: dict[tuple[str, str], set[_Named]] = {}
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
            found.setdefault(owner, set()).add((name, key.kv_rank, key.object_group_id))
    return found


def _name(block: CachedBlock) -> _Named:
    return block.key, kv_rank(block.world_size, block.rank), block.kv_group


def _ranges(numbers: Sequence[int]) -> list[int | list[int]]:
    """Three or more numbers that follow each other as first and last, in order."""
    found: list[int | list[int]] = []
    run: list[int] = []
    for number in [*numbers, None]:
        if run and number != run[-1] + 1:
            found += [[run[0], run[-1]]] if len(run) > 2 else run
            run = []
        if number is not None:
            run.append(number)
    return found


def _all_did(errors: Iterable[str | None]) -> None:
    """Raises NodeUnreachable when a node did not do it: LMCache's clients know one server, and no half."""
    for error in errors:
        if error is not None:
            raise NodeUnreachable(error)
