"""/api/v1/sessions"""

from typing import Annotated, cast

from litestar import Router, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from app.http.operation import operation
from app.http.parameters import Cursor, Limit, OfNode, OfTenant, in_path, in_query
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.cache.sessions import AgentSessionCopies, AgentSessionList, AgentSessionPost, SessionActionAnswer
from app.services.cache.sessions import Sessions
from dataplane.protocol.control.sessions import SessionAction
from dataplane.protocol.salts import SALT
from dataplane.protocol.sessions import SESSION

SessionName = Annotated[str, in_path(SESSION)]
_ACTIONS: dict[SessionAction, str] = {
    "release": "Release a session: make its private blocks the first victims; blocks that others share stay",
    "retain": "Retain a session: evict its blocks after the tenant's other blocks, for a bounded time",
    "prefetch": "Prefetch a session: load its blocks that only tiers hold into memory, before its next turn",
}


@operation(get, "/", "not-found", "invalid", "node-unreachable", role="viewer", scoped=True)
async def list_sessions(
    agent_sessions: NamedDependency[Sessions],
    tenant: OfTenant = None,
    node: OfNode = None,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> AgentSessionList:
    """List the sessions of each node that its data plane knows since its last start."""
    with span("sessions.list"):
        return await agent_sessions.page(tenant, node, limit, cursor, caller())


@operation(get, "/{session:str}", "not-found", "invalid", "node-unreachable", role="viewer", scoped=True)
async def get_session_state(
    agent_sessions: NamedDependency[Sessions],
    session: SessionName,
    tenant: Annotated[
        str | None,
        in_query("Tenant of the session, as shown; the only one that the token is limited to, or `_default`.", SALT),
    ] = None,
    node: OfNode = None,
) -> AgentSessionCopies:
    """Get a session on every node that knows it."""
    with span("sessions.get"):
        return await agent_sessions.copies(session, tenant, node, caller())


@operation(
    post,
    "/{session:str}",
    "not-found",
    "invalid",
    "node-unreachable",
    role="operator",
    scoped=True,
    opt={
        "suffixes": {
            f":{action}": {"operationId": f"{action}Session", "summary": summary}
            for action, summary in _ACTIONS.items()
        }
    },
)
async def act_on_session(
    agent_sessions: NamedDependency[Sessions], session: SessionName, data: JSONBody[AgentSessionPost]
) -> SessionActionAnswer:
    """Act on the blocks of a session."""
    name, _, action = session.rpartition(":")
    with span(f"sessions.{action}"):
        return await agent_sessions.act(cast("SessionAction", action), name, data, caller())


router = Router("/sessions", route_handlers=[list_sessions, get_session_state, act_on_session], tags=["sessions"])
