"""Sessions of browsers that logged in with a token. Only the browser knows the cookie's value."""

import time
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import Forbidden, TooManyRequests, Unauthorized
from app.observe.catalogue.access import SessionClosed, SessionOpened
from app.schemas.access.tokens import SessionAnswer
from app.services.access import credentials
from app.services.access.auth import Auth, Credentials
from app.services.access.credentials import SETUP_ID
from app.services.access.tokens import identity_fields
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.services.base.throttle import Throttle
from app.store.access import tokens
from app.store.access.tokens import SessionRow, TokenRow
from app.store.base.database import Database

SESSION_S = 12 * 3600
MAX_OF_A_TOKEN = 100
"""Largest number of sessions of one token; opening one more ends the oldest."""
LOGINS, LOGINS_PER_SECOND = 100, 0.1
"""Logins of one token at once, and later: each login and logout is audited, and the audit is kept forever."""


class LoginSessions:
    def __init__(self, database: Database, changes: Changes, auth: Auth) -> None:
        self._database = database
        self._changes = changes
        self._auth = auth
        self._throttle = Throttle(LOGINS, LOGINS_PER_SECOND)

    async def log_in(self, token: str, attempt: Credentials) -> tuple[str, SessionAnswer]:
        """Open a session, and return the cookie's value and the session. Raises Unauthorized, Forbidden,
        TooManyRequests."""
        principal = await self._auth.check(token.strip(), attempt)
        if principal.token_id == SETUP_ID:
            raise Unauthorized("the setup token can only create the first token: use 'larder login --setup'")
        if not principal.may("viewer"):
            raise Forbidden(f"{principal.actor!r} has the role {principal.role!r}, which sees nothing")
        if wait_s := self._throttle.count(principal.share, time.monotonic()):
            raise TooManyRequests("too many logins with this token", retry_after_s=wait_s)
        cookie, now = credentials.new_cookie(), time.time()
        row = SessionRow(
            hash=self._auth.hasher.session(cookie),
            token_id=principal.token_id or None,
            configured="" if principal.token_id else self._auth.configured_hash,
            created_at=now,
            expires_at=now + SESSION_S,
            source=principal.source,
        )
        async with self._changes.begin(principal) as change:
            ended = await tokens.open_session(change.session, row, change.now, MAX_OF_A_TOKEN)
            change.noted("login", "session", principal.actor, event=SessionOpened())
            ends_at = await _end_of(change.session, row)
        for digest in (row.hash, *ended):
            self._auth.forget_session(digest)
        return cookie, self._answer(replace(principal, session_hash=row.hash), cookie, ends_at)

    async def get(self, cookie: str, by: Principal) -> SessionAnswer:
        """Return the identity of the caller, with or without a session."""
        if not by.session:
            return self._answer(by, "", None)
        async with self._database.read() as session:
            row = await session.get(SessionRow, self._auth.hasher.session(cookie))
            ends_at = None if row is None else await _end_of(session, row)
        return self._answer(by, cookie, ends_at)

    async def log_out(self, cookie: str, by: Principal) -> None:
        """End the caller's session, if there is one."""
        if not by.session:
            return
        digest = self._auth.hasher.session(cookie)
        async with self._changes.begin(by) as change:
            if await tokens.close_session(change.session, digest):
                change.noted("logout", "session", by.actor, event=SessionClosed())
        self._auth.forget_session(digest)

    def _answer(self, by: Principal, cookie: str, expires_at: float | None) -> SessionAnswer:
        csrf = self._auth.hasher.csrf(cookie) if cookie else ""
        return SessionAnswer(**identity_fields(by), csrf_token=csrf, expires_at=expires_at)


async def _end_of(session: AsyncSession, row: SessionRow) -> float:
    """Return the time at which the session or its token expires, whichever comes first."""
    token = None if row.token_id is None else await session.get(TokenRow, row.token_id)
    if token is None or token.expires_at is None:
        return row.expires_at
    return min(row.expires_at, token.expires_at)
