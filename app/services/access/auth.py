"""Authentication: identifies the caller of a request by its token or session, in microseconds.

Rows of tokens are cached for a second, so that a revocation takes effect on all managers within two. While no token
exists, requests to a loopback address are those of `local` (setting `auth = "auto"`).
"""

import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.errors import LarderError, StoreUnavailable, TooManyRequests, Unauthorized
from app.observe.catalogue.access import TokenCreated
from app.services.access import credentials
from app.services.access.credentials import Hasher, same
from app.services.access.refusals import MinuteShare, RefusalAudit
from app.services.base.changes import Changes
from app.services.base.loading_cache import LoadingCache
from app.services.base.principals import ADMIN, Principal
from app.services.base.throttle import Throttle, address_block
from app.store.access import audit, tokens
from app.store.access.tokens import SETUP_ROLE, SessionRow, TokenRow
from app.store.base import identity
from app.store.base.database import Database

MAX_CACHED = 10_000
SHARES = {401: MinuteShare(whole=20, each=5, reserve=20), 403: MinuteShare(whole=60, each=20, reserve=60)}
"""Entries per minute that the audit keeps: of failures by address block, and of refusals by token. More are only
counted."""
EXPECTED = "expected 'Authorization: Bearer larder_…' with a token (create one with 'larder tokens create')"
_ITS_PLACE = "'auth.setup_token' in the log of the first start that required a token"
FIRST = (
    "a token is needed, and there is none yet: 'larder login --setup' creates the first with the setup token, which is "
    f"at {_ITS_PLACE}; when that is lost, start once with app.admin_token_file"
)
UNKNOWN = "the token is unknown: it was revoked, or was never created here"
UNKNOWN_SETUP = (
    "this is not the setup token of this database, or the first token was already created with it; "
    f"it is at {_ITS_PLACE}"
)


@dataclass(frozen=True)
class Credentials:
    """Credentials of a request, and where it came from."""

    authorization: str | None = None
    cookie: str = ""
    request_id: str = ""
    source: str = ""
    trace_id: str = ""

    def principal(self, **fields: Any) -> Principal:
        """Return the caller of the request."""
        return Principal(request_id=self.request_id, source=self.source, trace_id=self.trace_id, **fields)


class WrongToken(Unauthorized):
    """A wrong token was presented."""

    def __init__(self, reason: str, message: str, token_id: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.token_id = token_id


class Auth:
    """Authenticates callers. Call `start` once, then `identify` for each request."""

    def __init__(self, database: Database, changes: Changes, configured: str, *, may_open: bool) -> None:
        """`configured` is the admin token of the settings. If `may_open`, requests need no token before one exists."""
        self._database = database
        self._changes = changes
        self._configured = configured
        self._configured_hash = ""
        self._may_open = may_open
        self._closed = bool(configured)
        self._hasher: Hasher | None = None
        self._tokens = LoadingCache(partial(database.row, TokenRow), MAX_CACHED)
        self._sessions = LoadingCache(partial(database.row, SessionRow), MAX_CACHED)
        self._tokens_exist = LoadingCache(self._load_tokens_exist, 1)
        self._throttle = Throttle()
        self._refusals: dict[int, RefusalAudit[_Refused]] = {
            status: RefusalAudit(share) for status, share in SHARES.items()
        }
        self._used: dict[str, tuple[float, str]] = {}
        self.failures: Counter[str] = Counter()
        """Number of unauthenticated requests by reason."""
        self._log = structlog.get_logger()

    @property
    def started(self) -> bool:
        return self._hasher is not None

    @property
    def hasher(self) -> Hasher:
        assert self._hasher is not None, "it was not started"
        return self._hasher

    @property
    def configured_hash(self) -> str:
        """Hash of the token of the settings; empty if there is none."""
        return self._configured_hash

    @property
    def unrecorded(self) -> int:
        """Number of failures and refusals since the start that have no audit entry."""
        return sum(refusals.suppressed_total for refusals in self._refusals.values())

    async def start(self) -> str:
        """Return the one-time setup token if it was created now, else an empty string. None is created while requests
        need no token: any of them can create the first. Raises StoreUnavailable."""
        async with self._database.read() as session:
            self._hasher = Hasher(await identity.store_id(session), await identity.secret(session))
        if self._configured:
            self._configured_hash = self._hasher.configured(self._configured)
        setup_token = credentials.new_token(credentials.SETUP_ID)
        async with self._changes.begin(Principal(actor="larder")) as change:
            await audit.lock(change.session)  # managers that start together create only one
            if self._closed or await tokens.exist(change.session):
                self._closed = True
                await tokens.drop_setup(change.session)
                return ""
            if self._may_open or await change.session.get(TokenRow, credentials.SETUP_ID) is not None:
                return ""
            change.session.add(
                TokenRow(
                    id=setup_token.id, name="(setup)", role=SETUP_ROLE, tenants=None,
                    hash=self._hasher.token(setup_token), created_by="larder", created_at=change.now,
                )
            )  # fmt: skip
            change.noted("create", "token", "(setup)", event=TokenCreated("(setup)"))
        return setup_token.text

    async def identify(self, attempt: Credentials, *, again: bool = False) -> Principal:
        """Return the caller. `again`: the request was admitted before, so nothing is counted. Raises Unauthorized,
        TooManyRequests, StoreUnavailable."""
        if attempt.authorization is not None:
            try:
                return await self._by_token(attempt, attempt.authorization)
            except WrongToken as error:
                raise (error if again else await self._failed(attempt, error)) from None
        principal = await self._by_session(attempt) if attempt.cookie else None
        if principal is not None:
            return principal
        if await self.is_open():
            return attempt.principal()
        if attempt.cookie:
            raise Unauthorized("the session is over: log in again")
        raise Unauthorized(EXPECTED if await self._has_tokens() else FIRST)

    async def still(self, attempt: Credentials, caller: Principal) -> bool:
        """Return whether the caller of a long response would still be admitted."""
        try:
            now = await self.identify(attempt, again=True)
        except StoreUnavailable:
            return True
        except LarderError:
            return False
        return (now.actor, now.role, now.salts) == (caller.actor, caller.role, caller.salts)

    async def _has_tokens(self) -> bool:
        """Return whether a token exists. Raises StoreUnavailable."""
        return self._closed or await self._tokens_exist.get("")

    async def is_open(self) -> bool:
        """Return whether requests need no token. Once a token exists, they need one until the next start."""
        if self._closed or not self._may_open:
            return False
        if await self._tokens_exist.get(""):
            self._closed = True
        return not self._closed

    def forget(self, token_id: str) -> None:
        """Drop a token from the cache after a change by this manager, so that the change takes effect at once."""
        self._tokens.forget(token_id)
        self._tokens_exist.forget("")

    def forget_session(self, digest: str) -> None:
        self._sessions.forget(digest)

    def take_used(self) -> dict[str, tuple[float, str]]:
        """Return when and from where tokens were used since the last call, by id."""
        used, self._used = self._used, {}
        return used

    async def refused(self, by: Principal, method: str, path: str, reason: str) -> None:
        """Audit the refusal of a request of an authenticated caller."""
        await self._keep(403, by, method, "request", path, reason)

    async def check(self, presented: str, attempt: Credentials) -> Principal:
        """Return the caller of a token that was not sent in the Authorization header. Raises what `identify` raises."""
        try:
            return await self._verify(presented, attempt)
        except WrongToken as error:
            raise await self._failed(attempt, error) from None

    async def _by_token(self, attempt: Credentials, header: str) -> Principal:
        if len(header) > credentials.MAX_CHARACTERS + len("Bearer "):
            raise WrongToken("malformed", f"expected a token of at most {credentials.MAX_CHARACTERS} characters")
        scheme, _, token_text = header.partition(" ")
        if scheme.lower() != "bearer":
            raise WrongToken("malformed", f"{EXPECTED}, got another scheme")
        return await self._verify(token_text.strip(" "), attempt)

    async def _verify(self, text: str, attempt: Credentials) -> Principal:
        if self._configured_hash and same(self.hasher.configured(text), self._configured_hash):
            return attempt.principal(actor=ADMIN)
        token = credentials.parsed(text)
        if token is None:
            raise WrongToken("malformed", "this is not a token of Larder: expected larder_ID_SECRET")
        row = await self._tokens.get(token.id)
        digest = self.hasher.token(token)
        if row is None or not same(digest, row.hash):
            token_id = "" if row is None else token.id
            message = UNKNOWN_SETUP if token.id == credentials.SETUP_ID else UNKNOWN
            if message == UNKNOWN and not self._may_open and not await self._has_tokens():
                message = FIRST
            raise WrongToken("unknown", message, token_id)
        return self._principal_of(row, attempt)

    def _principal_of(self, row: TokenRow, attempt: Credentials, session_hash: str = "") -> Principal:
        now = time.time()
        if row.expires_at is not None and row.expires_at <= now:
            raise WrongToken("expired", f"the token {row.name!r} has expired", row.id)
        if row.role == SETUP_ROLE:
            return attempt.principal(actor="setup", token_id=row.id)
        self._used[row.id] = (now, attempt.source)
        salts = None if row.tenants is None else frozenset(row.tenants)
        return attempt.principal(actor=row.name, role=row.role, salts=salts, token_id=row.id, session_hash=session_hash)

    async def _by_session(self, attempt: Credentials) -> Principal | None:
        if not credentials.is_cookie(attempt.cookie):
            return None
        digest = self.hasher.session(attempt.cookie)
        row = await self._sessions.get(digest)
        if row is None or row.expires_at <= time.time():
            return None
        if row.token_id is None:
            same_token = self._configured_hash and same(row.configured, self._configured_hash)
            return attempt.principal(actor=ADMIN, session_hash=digest) if same_token else None
        token = await self._tokens.get(row.token_id)
        try:
            return None if token is None else self._principal_of(token, attempt, digest)
        except WrongToken:
            return None

    async def _failed(self, attempt: Credentials, error: WrongToken) -> LarderError:
        self.failures[error.reason] += 1
        wait_s = self._throttle.count(attempt.source, time.monotonic())
        by = attempt.principal(actor="", role="viewer", token_id=error.token_id)
        await self._keep(401, by, "authenticate", "token", error.token_id, error.message)
        if not wait_s:
            return error
        return TooManyRequests(f"too many wrong tokens from {attempt.source}: {error.message}", retry_after_s=wait_s)

    async def _keep(self, status: int, by: Principal, action: str, kind: str, name: str, reason: str) -> None:
        refusals = self._refusals[status]
        refused = _Refused(by, action, kind, name, reason)
        source = address_block(by.source)
        caller = by.token_id if status == 403 and by.token_id else source
        if not refusals.take(caller, (source, by.token_id, action, name, reason), refused, time.time()):
            return
        suppressed, refusals.suppressed = refusals.suppressed, 0
        await self._write_down(refused, {"left_out_before": suppressed} if suppressed else None)

    async def keep_repeated(self, now: float, *, all_of_them: bool) -> None:
        """Audit how often refusals of past minutes (at Unix time `now`) were repeated."""
        for refusals in self._refusals.values():
            for refused, count in refusals.take_repeated(now, all_of_them=all_of_them):
                await self._write_down(refused, {"again": count})

    async def _write_down(self, refused: "_Refused", details: dict[str, int] | None) -> None:
        try:
            await self._changes.denied(refused.action, refused.kind, refused.name, details, refused.by, refused.reason)
        except (LarderError, SQLAlchemyError) as error:  # the refusal stands whether or not it is audited
            self._log.warning("audit.failed", reason=str(error))

    async def _load_tokens_exist(self, _: str) -> bool:
        async with self._database.read() as session:
            return await tokens.exist(session)


@dataclass(frozen=True)
class _Refused:
    """A refusal as the audit keeps it."""

    by: Principal
    action: str
    kind: str
    name: str
    reason: str
