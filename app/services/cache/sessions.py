"""Lists the sessions that requests name, and forwards actions on their blocks to the nodes that know them.

Nodes alone know sessions; a restart of the management plane loses none.
"""

from functools import partial

import msgspec

from app.ingest.fleet import FleetNode
from app.observe.catalogue.fleet import SessionActionRequested
from app.schemas.cache.sessions import (
    MAX_SECONDS,
    AgentSessionAnswer,
    AgentSessionCopies,
    AgentSessionList,
    AgentSessionPost,
    NodeSessionAction,
    SessionActionAnswer,
)
from app.schemas.records.prefixes import NodeError
from app.services.base import checks
from app.services.base.changes import Changes
from app.services.base.fields import answer
from app.services.base.principals import Principal
from app.services.cache.node_pages import page_of
from app.services.fleet.targets import Targets
from dataplane.protocol.control.sessions import (
    MAX_LISTED_SESSIONS,
    MAX_PREFETCH_S,
    ActOnSession,
    ListSessions,
    SessionActed,
    SessionAction,
    SessionsListed,
    SessionState,
)
from dataplane.protocol.salts import shown
from dataplane.protocol.sessions import check_session

_SECONDS: dict[SessionAction, tuple[float, float]] = {
    "release": (0.0, 0.0),
    "retain": (300.0, MAX_SECONDS),
    "prefetch": (60.0, MAX_PREFETCH_S),
}
"""Default and largest `seconds` of each action."""


class Sessions:
    def __init__(self, targets: Targets, changes: Changes) -> None:
        self._targets = targets
        self._requests = targets.node_requests
        self._changes = changes

    async def page(
        self, tenant: str | None, node: str | None, limit: int, cursor: str, by: Principal
    ) -> AgentSessionList:
        """Return a page of sessions. Raises Invalid, Forbidden, NotFound, NodeUnreachable."""
        query = ListSessions("", by.own_salt(None if tenant is None else checks.tenant_in_path(tenant)))

        async def read(target: FleetNode, after: int, most: int) -> tuple[list[SessionState], int]:
            message = msgspec.structs.replace(query, after=after, limit=min(MAX_LISTED_SESSIONS, most))
            part = await self._requests.ask(target, message, SessionsListed)
            return part.sessions, part.next

        page = await page_of(self._targets.one_or_connected(node), limit, cursor, read)
        return AgentSessionList(
            [_answer(name, state) for name, state in page.items], page.next_cursor, page.failed_nodes
        )

    async def copies(self, name: str, tenant: str | None, node: str | None, by: Principal) -> AgentSessionCopies:
        """Return a session on all nodes. Raises Invalid, Forbidden, NotFound, NodeUnreachable."""
        session, salt = self._named(name, tenant, by)
        query = ListSessions("", salt, session)
        replies = await self._requests.ask_all(self._targets.one_or_all(node), query, SessionsListed)
        states = [(reply.node.name, state) for reply in replies if reply.answer for state in reply.answer.sessions]
        failed_nodes = [NodeError(reply.node.name, reply.error) for reply in replies if reply.error is not None]
        if not states and not failed_nodes:
            raise checks.missing("session", session)
        return AgentSessionCopies(session, [_answer(*each) for each in states], len(states), failed_nodes)

    async def act(
        self, action: SessionAction, name: str, request: AgentSessionPost, by: Principal
    ) -> SessionActionAnswer:
        """Release, retain or prefetch the blocks of a session. Raises Invalid, Forbidden, NotFound if no node knows the
        session, NodeUnreachable."""
        session, salt = self._named(name, request.tenant, by)
        default, most = _SECONDS[action]
        seconds = min(default if request.seconds is None else request.seconds, most)
        nodes = self._targets.selected(request)
        node_names = [node.name for node in nodes]
        event = SessionActionRequested(action, session, shown(salt), node_names, seconds)
        audited = {"tenant": shown(salt), "seconds": seconds, "nodes": node_names}
        await self._changes.note(action, "agent_session", session, audited, by, event)
        replies = await self._requests.ask_all(nodes, ActOnSession("", action, salt, session, seconds), SessionActed)
        items = [
            NodeSessionAction(reply.node.name, *_counts(reply.answer), reply.error)
            for reply in replies
            if reply.answer is None or reply.answer.found
        ]
        if not items:
            raise checks.missing("session", session)
        blocks, size, refused = (sum(counts) for counts in zip(*map(_counts, items), strict=True))
        return SessionActionAnswer(session, shown(salt), items, len(items), blocks, size, refused)

    def _named(self, name: str, tenant: str | None, by: Principal) -> tuple[str, str]:
        """Return the name and the salt of a session. Raises Invalid, Forbidden."""
        session = checks.valid("session", partial(check_session, name))
        salt = by.own_salt(None if tenant is None else checks.tenant_in_path(tenant))
        return session, salt or ""


def _counts(acted: SessionActed | NodeSessionAction | None) -> tuple[int, int, int]:
    """Return the numbers of blocks, of bytes and of refused blocks; 0 for a node that did not answer."""
    return (0, 0, 0) if acted is None else (acted.blocks, acted.bytes, acted.refused_blocks)


def _answer(node: str, state: SessionState) -> AgentSessionAnswer:
    return answer(
        AgentSessionAnswer,
        state,
        node=node,
        tenant=shown(state.tenant),
        started_at=float(state.started_at),
        used_at=float(state.used_at),
        retained_until=float(state.retained_until) or None,
    )
