"""Lists cached blocks by block and node."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from app.ingest.fleet import FleetNode
from app.schemas.cache.blocks import BlockAnswer, BlockCopies, BlockList
from app.schemas.records.prefixes import NodeError
from app.services.base import checks
from app.services.base.fields import answer
from app.services.base.principals import Principal
from app.services.cache.node_pages import NodePage, page_of
from app.services.fleet.targets import Targets
from app.services.records.prefixes import PrefixService
from dataplane.protocol.control.lookups import MAX_LISTED_BLOCKS, Blocks, CachedBlock, ListBlocks
from dataplane.protocol.salts import shown


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


class BlockService:
    def __init__(self, targets: Targets, prefixes: PrefixService) -> None:
        self._targets = targets
        self._requests = targets.node_requests
        self._prefixes = prefixes

    async def page(self, filters: BlockFilters, limit: int, cursor: str, by: Principal) -> BlockList:
        """Return a page of blocks. Raises Invalid, Forbidden, NotFound, NodeUnreachable."""
        query = await self._query(filters, by)
        page = await self.listed(query, self._targets.one_or_connected(filters.node), limit, cursor)
        return BlockList([_answer(name, block) for name, block in page.items], page.next_cursor, page.failed_nodes)

    async def listed(
        self, query: ListBlocks, nodes: Sequence[FleetNode], limit: int, cursor: str
    ) -> NodePage[CachedBlock]:
        """Return a page of the blocks that nodes (sorted by name) list. Raises Invalid."""

        async def read(node: FleetNode, after: int, most: int) -> tuple[list[CachedBlock], int]:
            message = msgspec.structs.replace(query, after=after, limit=min(MAX_LISTED_BLOCKS, most))
            part = await self._requests.ask(node, message, Blocks)
            return part.blocks, part.next

        return await page_of(nodes, limit, cursor, read)

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
        query.tenant = by.own_salt(query.tenant)
        if filters.prefix is not None:
            tenant = None if query.tenant is None else shown(query.tenant)
            prefix = await self._prefixes.keys(filters.prefix, by, tenant)
            query.keys = b"".join(prefix.keys)
        return query


def _answer(node: str, block: CachedBlock) -> BlockAnswer:
    return answer(BlockAnswer, block, node=node, tenant=shown(block.tenant))
