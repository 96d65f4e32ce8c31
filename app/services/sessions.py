"""Browsers that logged in with a token. The cookie's value is known to the browser alone."""

import time
from dataclasses import replace

from app.errors import Unauthorized
from app.schemas.tokens import SessionAnswer
from app.services import credentials
from app.services.auth import Attempt, Auth
from app.services.callers import Caller
from app.services.changes import Changes
from app.services.credentials import SETUP_ID
from app.services.tokens import who_fields
from app.store import tokens
from app.store.database import Database
from app.store.tokens import SessionRow

SESSION_S = 12 * 3600
MOST_OF_A_TOKEN = 100
"""Sessions that were opened with one token; one more ends the oldest."""


class Sessions:
    def __init__(self, database: Database, changes: Changes, auth: Auth) -> None:
        self._database = database
        self._changes = changes
        self._auth = auth

    async def log_in(self, token: str, attempt: Attempt) -> tuple[str, SessionAnswer]:
        """The cookie's value and who it is for. Raises Unauthorized, TooManyRequests."""
        who = await self._auth.check(token.strip(), attempt)
        if who.token_id == SETUP_ID:
            raise Unauthorized(
                "the setup token makes the first token and nothing else: 'larder login --setup'"
            )
        cookie, now = credentials.new_cookie(), time.time()
        row = SessionRow(
            hash=self._auth.hasher.session(cookie),
            token_id=who.token_id or None,
            configured="" if who.token_id else self._auth.configured_hash,
            created_at=now,
            expires_at=now + SESSION_S,
            source=who.source,
        )
        async with self._changes.begin(who) as change:
            ended = await tokens.open_session(change.session, row, change.now, MOST_OF_A_TOKEN)
            change.noted("login", "session", who.actor)
        for digest in (row.hash, *ended):
            self._auth.forget_session(digest)
        return cookie, self._answer(replace(who, session=True), cookie, row.expires_at)

    async def get(self, cookie: str, by: Caller) -> SessionAnswer:
        """Who asks, with a session or without."""
        if not by.session:
            return self._answer(by, "", None)
        async with self._database.read() as session:
            row = await session.get(SessionRow, self._auth.hasher.session(cookie))
        return self._answer(by, cookie, None if row is None else row.expires_at)

    async def log_out(self, cookie: str, by: Caller) -> None:
        """Nothing happens when there is no session."""
        if not by.session:
            return
        digest = self._auth.hasher.session(cookie)
        async with self._changes.begin(by) as change:
            if await tokens.close_session(change.session, digest):
                change.noted("logout", "session", by.actor)
        self._auth.forget_session(digest)

    def _answer(self, by: Caller, cookie: str, expires_at: float | None) -> SessionAnswer:
        csrf = self._auth.hasher.csrf(cookie) if cookie else ""
        return SessionAnswer(**who_fields(by), csrf_token=csrf, expires_at=expires_at)
