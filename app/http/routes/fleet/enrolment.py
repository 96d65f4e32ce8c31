"""/api/v1/join-tokens"""

from litestar import Router, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from app.http.principals import caller
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.fleet.enrolment import JoinTokenList, JoinTokenPost, NewJoinToken
from app.services.fleet.enrolment import Enrolment


@get(
    "/",
    operation_id="listJoinTokens",
    summary="List join tokens, newest first, without their secrets",
    opt={"role": "admin"},
    responses=declared(),
)
async def list_join_tokens(enrolment: NamedDependency[Enrolment]) -> JoinTokenList:
    return await enrolment.page()


@post(
    "/",
    operation_id="createJoinToken",
    summary="Create a token with which data planes join the fleet; it is shown only once",
    opt={"body": JoinTokenPost, "role": "admin"},
    responses=declared("malformed", "invalid", "conflict", "unsupported-media-type", "too-large"),
)
async def create_join_token(enrolment: NamedDependency[Enrolment], data: JSONBody[JoinTokenPost]) -> NewJoinToken:
    with span("join_tokens.create"):
        return await enrolment.create(data, caller())


@delete(
    "/{ident:str}",
    operation_id="deleteJoinToken",
    summary="Revoke a join token; nodes that joined with it stay in the fleet",
    opt={"role": "admin"},
    responses=declared("not-found"),
)
async def delete_join_token(enrolment: NamedDependency[Enrolment], ident: FromPath[str]) -> None:
    with span("join_tokens.delete"):
        await enrolment.delete(ident, caller())


router = Router("/join-tokens", route_handlers=[list_join_tokens, create_join_token, delete_join_token], tags=["nodes"])
