"""Lists cached blocks by block and node. A page takes a bounded number of requests to nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from app.errors import Forbidden, Invalid, LarderError
from app.ingest.fleet import FleetNode
from app.schemas.cache.blocks import BlockAnswer, BlockCopies, BlockList
from app.schemas.records.prefixes import NodeError
from app.services.base import checks
from app.services.base.fields import answer
from app.services.base.principals import Principal
from app.services.fleet.targets import Targets
from app.services.records.prefixes import PrefixService
from app.store.base import cursors
from dataplane.protocol.control.lookups import MAX_LISTED_BLOCKS, Blocks, CachedBlock, ListBlocks
from dataplane.protocol.salts import shown

MAX_QUESTIONS = 64
"""Largest number of requests to nodes per page."""
MAX_CURSOR = (1 << 62) - 1


@dataclass(frozen=True)
class BlockFilters:
    """Filters as the request gives them; None matches everything."""

    tenant: str | None = None
    """Shown name of the tenant."""
    model: str | None = None
    space: str | None = None
    key: str | None = None
    prefix: str | None = None
    """Label of a hot prefix; matches the blocks of its own keys."""
    node: str | None = None


@dataclass(frozen=True)
class ListedBlocks:
    """A page of blocks as nodes report them, each with its node's name."""

    blocks: list[tuple[str, CachedBlock]]
    next_cursor: str
    failed_nodes: list[NodeError]


class _Cursor(msgspec.Struct, array_like=True):
    node: str
    after: int


class BlockService:
    def __init__(self, targets: Targets, prefixes: PrefixService) -> None:
        self._targets = targets
        self._requests = targets.node_requests
        self._prefixes = prefixes

    async def page(self, filters: BlockFilters, limit: int, cursor: str, by: Principal) -> BlockList:
        """Return a page of blocks. Raises Invalid, Forbidden, NotFound, NodeUnreachable."""
        query = await self._query(filters, by)
        listing = await self.listed(query, self._targets.one_or_connected(filters.node), limit, cursor)
        return BlockList(
            [_answer(name, block) for name, block in listing.blocks], listing.next_cursor, listing.failed_nodes
        )

    async def listed(self, query: ListBlocks, nodes: Sequence[FleetNode], limit: int, cursor: str) -> ListedBlocks:
        """Return a page of the blocks that nodes (sorted by name) list. Raises Invalid."""
        at = _read(cursor)
        blocks: list[tuple[str, CachedBlock]] = []
        failed_nodes: list[NodeError] = []
        questions = 0
        for node in nodes:
            if node.name < at.node:
                continue
            after = at.after if node.name == at.node else 0
            while True:
                if len(blocks) >= limit or questions >= MAX_QUESTIONS:
                    return ListedBlocks(blocks, _write(node.name, after), failed_nodes)
                questions += 1
                message = msgspec.structs.replace(query, after=after, limit=min(MAX_LISTED_BLOCKS, limit - len(blocks)))
                try:
                    part = await self._requests.ask(node, message, Blocks)
                except LarderError as error:
                    failed_nodes.append(NodeError(node.name, error.message))
                    break
                blocks += [(node.name, block) for block in part.blocks]
                if part.next <= after:
                    break
                after = part.next
        return ListedBlocks(blocks, "", failed_nodes)

    async def copies(self, key: str, by: Principal) -> BlockCopies:
        """Return the blocks of a key on all nodes and in all spaces. Raises Invalid, NotFound, NodeUnreachable."""
        name = checks.valid("key", lambda: checks.hex_digits(key, 64))
        query = ListBlocks("", keys=bytes.fromhex(name), limit=MAX_LISTED_BLOCKS)
        replies = await self._requests.each(self._requests.connected(), lambda node: self.of_node(node, query))
        blocks = [(reply.node.name, block) for reply in replies for block in reply.answer or ()]
        items = [_answer(node, block) for node, block in blocks if by.sees(block.tenant)]
        failed_nodes = [NodeError(reply.node.name, reply.error) for reply in replies if reply.error is not None]
        if not items and not failed_nodes:
            raise checks.missing("block", name)
        return BlockCopies(name, items, len(items), failed_nodes)

    async def of_node(self, node: FleetNode, query: ListBlocks) -> list[CachedBlock]:
        """Return all blocks that a node lists. Raises NodeUnreachable, NodeRefused."""
        blocks: list[CachedBlock] = []
        after = 0
        while True:
            message = msgspec.structs.replace(query, after=after)
            part = await self._requests.ask(node, message, Blocks)
            blocks += part.blocks
            if part.next <= after:
                return blocks
            after = part.next

    async def _query(self, filters: BlockFilters, by: Principal) -> ListBlocks:
        faults = checks.Faults()
        query = ListBlocks("", **checks.scope(filters, faults))
        if filters.key is not None and filters.prefix is not None:
            faults.add("prefix", "expected at most one of 'key' and 'prefix'")
        elif filters.key is not None:
            key = faults.check("key", lambda: checks.hex_digits(filters.key or "", 64))
            query.keys = b"" if key is None else bytes.fromhex(key)
        faults.stop()
        if query.tenant is not None:
            by.check_salt(query.tenant)
        elif by.salts is not None:
            if len(by.salts) != 1:
                raise Forbidden(f"this token is limited to the tenants {by.tenants()}: say which with 'tenant'")
            (query.tenant,) = by.salts
        if filters.prefix is not None:
            tenant = None if query.tenant is None else shown(query.tenant)
            prefix = await self._prefixes.keys(filters.prefix, by, tenant)
            query.keys = b"".join(prefix.keys)
        return query


def _write(node: str, after: int) -> str:
    return cursors.write(_Cursor(node, after))


def _read(text: str) -> _Cursor:
    """Return the parsed cursor. Raises Invalid."""
    if not text:
        return _Cursor("", 0)
    try:
        cursor = cursors.read(text, _Cursor)
        if 0 <= cursor.after <= MAX_CURSOR:
            return cursor
    except cursors.CursorError:
        pass
    raise Invalid.at("cursor", "expected next_cursor of a page of this list")


def _answer(node: str, block: CachedBlock) -> BlockAnswer:
    return answer(BlockAnswer, block, node=node, tenant=shown(block.tenant))
