"""/api/v1/join-tokens"""

from litestar import Router, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from app.http.operation import operation
from app.http.parameters import Ident
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.fleet.enrolment import JoinTokenList, JoinTokenPost, NewJoinToken
from app.services.fleet.enrolment import Enrolment


@operation(get, "/", role="admin")
async def list_join_tokens(enrolment: NamedDependency[Enrolment]) -> JoinTokenList:
    """List join tokens, newest first, without their secrets."""
    return await enrolment.page()


@operation(post, "/", "conflict", role="admin", status_code=201)
async def create_join_token(enrolment: NamedDependency[Enrolment], data: JSONBody[JoinTokenPost]) -> NewJoinToken:
    """Create a token with which data planes join the fleet; it is shown only once."""
    with span("join_tokens.create"):
        return await enrolment.create(data, caller())


@operation(delete, "/{ident:str}", "not-found", role="admin")
async def delete_join_token(enrolment: NamedDependency[Enrolment], ident: Ident) -> None:
    """Revoke a join token; nodes that joined with it stay in the fleet."""
    with span("join_tokens.delete"):
        await enrolment.delete(ident, caller())


router = Router("/join-tokens", route_handlers=[list_join_tokens, create_join_token, delete_join_token], tags=["nodes"])
