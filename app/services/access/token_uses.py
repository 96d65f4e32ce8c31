"""Writes when and from where tokens were last used, outside of requests, at most once a minute for each token. Also
writes how often refusals were repeated."""

import time

from app.errors import StoreUnavailable
from app.services.access.auth import Auth
from app.store.access import tokens
from app.store.base.database import Database

EVERY_S = 60.0


class TokenUses:
    def __init__(self, database: Database, auth: Auth) -> None:
        self._database = database
        self._auth = auth
        self._pending: dict[str, tuple[float, str]] = {}
        self._written: dict[str, float] = {}

    async def write(self, now: float, *, all_of_them: bool = False) -> None:
        """Write what is due at monotonic time `now`. If the database is unavailable, the next call tries again."""
        await self._auth.keep_repeated(time.time(), all_of_them=all_of_them)
        self._pending.update(self._auth.take_used())
        due_uses = {
            token_id: use
            for token_id, use in self._pending.items()
            if all_of_them or now - self._written.get(token_id, -EVERY_S) >= EVERY_S
        }
        if not due_uses:
            return
        try:
            async with self._database.write(light=True) as session:
                for token_id, (at, source) in sorted(due_uses.items()):
                    await tokens.used(session, token_id, at, source)
        except StoreUnavailable:
            return
        for token_id, use in due_uses.items():
            if self._pending.get(token_id) == use:  # it may have been used again, or written by another call
                del self._pending[token_id]
            self._written[token_id] = now
        self._written = {token_id: at for token_id, at in self._written.items() if now - at < EVERY_S}
