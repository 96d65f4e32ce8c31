"""/api/v1/tokens and /api/v1/whoami"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import Body, JSONBody

from app.http.body import MERGE_PATCH
from app.http.operation import operation
from app.http.parameters import Cursor, Ident, Limit, sort_by
from app.http.principals import caller
from app.schemas.access.tokens import TokenAnswer, TokenList, TokenMade, TokenPatch, TokenPost, Whoami
from app.schemas.base.listing import PageRequest
from app.services.access.tokens import SORTABLE, Tokens
from app.services.access.tokens import whoami as identity_of

_Sort = Annotated[str, sort_by(SORTABLE)]


@operation(get, "/", "invalid", role="admin")
async def list_tokens(
    tokens: NamedDependency[Tokens], sort: _Sort = "name", limit: Limit = 1000, cursor: Cursor = ""
) -> TokenList:
    """List tokens, without their secrets."""
    return await tokens.page(PageRequest(limit, cursor, sort))


@operation(get, "/{token_id:str}", "not-found", role="admin")
async def get_token(tokens: NamedDependency[Tokens], token_id: Ident) -> TokenAnswer:
    """Get a token by its id or name, without its secret."""
    return await tokens.get(token_id)


@operation(post, "/", "conflict", role="admin", opt={"setup": True}, status_code=201)
async def create_token(tokens: NamedDependency[Tokens], data: JSONBody[TokenPost]) -> Response[TokenMade]:
    """Create a token; only this answer contains its secret."""
    token = await tokens.make(data, caller())
    return Response(token, headers={"Location": f"/api/v1/tokens/{token.id}"})


@operation(patch, "/{token_id:str}", "not-found", "conflict", role="admin", opt={"patch": TokenPatch})
async def patch_token(
    tokens: NamedDependency[Tokens], token_id: Ident, data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)]
) -> TokenAnswer:
    """Rename a token, or change its expiry."""
    return await tokens.patch(token_id, data, caller())


@operation(delete, "/{token_id:str}", "not-found", "conflict", role="admin")
async def revoke_token(tokens: NamedDependency[Tokens], token_id: Ident) -> None:
    """Revoke a token and end its sessions; every manager rejects it within two seconds."""
    await tokens.revoke(token_id, caller())


@operation(get, "/whoami", role="viewer", scoped=True, tags=["tokens"], sync_to_thread=False)
def whoami() -> Whoami:
    """Get the identity of the caller."""
    return identity_of(caller())


router = Router(
    "/tokens", route_handlers=[list_tokens, get_token, create_token, patch_token, revoke_token], tags=["tokens"]
)
