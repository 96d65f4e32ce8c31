"""/api/v1/blocks"""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from app.http.operation import operation
from app.http.parameters import Cursor, Limit
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.cache.blocks import BlockCopies, BlockList
from app.services.cache.blocks import BlockFilters, BlockService


@operation(get, "/", "not-found", "invalid", "node-unreachable", role="viewer", scoped=True)
async def list_blocks(
    blocks: NamedDependency[BlockService],
    tenant: Annotated[str | None, QueryParameter(description="Only this tenant, as shown.")] = None,
    model: Annotated[str | None, QueryParameter(description="Only this model.")] = None,
    space: Annotated[str | None, QueryParameter(description="Only this space, 32 hex digits.")] = None,
    key: Annotated[str | None, QueryParameter(description="Only this key, 64 hex digits.")] = None,
    prefix: Annotated[
        str | None, QueryParameter(description="Only blocks of the hot prefix with this label in `/prefixes`.")
    ] = None,
    node: Annotated[str | None, QueryParameter(description="Only this node.")] = None,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> BlockList:
    """List cached blocks of each node."""
    with span("blocks.list"):
        return await blocks.page(BlockFilters(tenant, model, space, key, prefix, node), limit, cursor, caller())


@operation(get, "/{key:str}", "not-found", "invalid", "node-unreachable", role="viewer", scoped=True)
async def get_block(blocks: NamedDependency[BlockService], key: FromPath[str]) -> BlockCopies:
    """Get the blocks of one key on every node and in every space."""
    with span("blocks.get"):
        return await blocks.copies(key, caller())


router = Router("/blocks", route_handlers=[list_blocks, get_block], tags=["blocks"])
