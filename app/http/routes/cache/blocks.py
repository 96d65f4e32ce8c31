"""/api/v1/blocks"""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.operation import operation
from app.http.parameters import Cursor, Key, Limit, OfModel, OfNode, OfTenant, in_query
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.base.fields import KEY, SPACE, TEXT
from app.schemas.cache.blocks import BlockCopies, BlockList
from app.services.cache.blocks import BlockFilters, BlockService


@operation(get, "/", "not-found", "invalid", "node-unreachable", role="viewer", scoped=True)
async def list_blocks(
    blocks: NamedDependency[BlockService],
    tenant: OfTenant = None,
    model: OfModel = None,
    space: Annotated[str | None, in_query("Only this space, 32 hex digits.", SPACE)] = None,
    key: Annotated[str | None, in_query("Only this key, 64 hex digits.", KEY)] = None,
    prefix: Annotated[
        str | None,
        in_query("Only blocks of the hot prefix with this label in `/prefixes`.", TEXT, min_length=1, max_length=128),
    ] = None,
    node: OfNode = None,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> BlockList:
    """List cached blocks of each node."""
    with span("blocks.list"):
        return await blocks.page(BlockFilters(tenant, model, space, key, prefix, node), limit, cursor, caller())


@operation(get, "/{key:str}", "not-found", "invalid", "node-unreachable", role="viewer", scoped=True)
async def get_block(blocks: NamedDependency[BlockService], key: Key) -> BlockCopies:
    """Get the blocks of one key on every node and in every space."""
    with span("blocks.get"):
        return await blocks.copies(key, caller())


router = Router("/blocks", route_handlers=[list_blocks, get_block], tags=["blocks"])
