"""/api/v1/tokens and /api/v1/whoami"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import Body, FromPath, JSONBody

from app.http.body import MERGE_PATCH
from app.http.middleware.turns import in_turn
from app.http.parameters import Cursor, Limit, Sort
from app.http.principals import caller
from app.http.problems import declared
from app.schemas.access.tokens import TokenAnswer, TokenList, TokenMade, TokenPatch, TokenPost, Whoami
from app.schemas.base.listing import PageRequest
from app.services.access.tokens import Tokens
from app.services.access.tokens import whoami as identity_of

_WRITES = ("malformed", "invalid", "conflict", "unsupported-media-type", "too-large")


@get(
    "/",
    operation_id="listTokens",
    summary="List tokens, without their secrets",
    opt={"role": "admin"},
    middleware=[in_turn],
    responses=declared("invalid"),
)
async def list_tokens(
    tokens: NamedDependency[Tokens], sort: Sort = "name", limit: Limit = 1000, cursor: Cursor = ""
) -> TokenList:
    return await tokens.page(PageRequest(limit, cursor, sort))


@get(
    "/{token_id:str}",
    operation_id="getToken",
    summary="Get a token by its id or name, without its secret",
    opt={"role": "admin"},
    responses=declared("not-found"),
)
async def get_token(tokens: NamedDependency[Tokens], token_id: FromPath[str]) -> TokenAnswer:
    return await tokens.get(token_id)


@post(
    "/",
    operation_id="createToken",
    summary="Create a token; only this answer contains its secret",
    opt={"body": TokenPost, "role": "admin", "setup": True},
    responses=declared(*_WRITES),
)
async def create_token(tokens: NamedDependency[Tokens], data: JSONBody[TokenPost]) -> Response[TokenMade]:
    made = await tokens.make(data, caller())
    return Response(made, headers={"Location": f"/api/v1/tokens/{made.id}"})


@patch(
    "/{token_id:str}",
    operation_id="patchToken",
    summary="Rename a token, or change its expiry",
    opt={"body": dict[str, Any], "patch": TokenPatch, "role": "admin"},
    responses=declared("not-found", *_WRITES),
)
async def patch_token(
    tokens: NamedDependency[Tokens],
    token_id: FromPath[str],
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
) -> TokenAnswer:
    return await tokens.patch(token_id, data, caller())


@delete(
    "/{token_id:str}",
    operation_id="revokeToken",
    summary="Revoke a token and end its sessions; every manager rejects it within two seconds",
    opt={"role": "admin"},
    responses=declared("not-found", "conflict"),
)
async def revoke_token(tokens: NamedDependency[Tokens], token_id: FromPath[str]) -> None:
    await tokens.revoke(token_id, caller())


@get(
    "/whoami",
    operation_id="whoami",
    summary="Get the identity of the caller",
    opt={"role": "viewer", "scoped": True},
    responses=declared(),
    tags=["tokens"],
    sync_to_thread=False,
)
def whoami() -> Whoami:
    return identity_of(caller())


router = Router(
    "/tokens", route_handlers=[list_tokens, get_token, create_token, patch_token, revoke_token], tags=["tokens"]
)
