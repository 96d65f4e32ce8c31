"""API tokens: create, list, change, revoke. The secret is returned once, when a token is created."""

import time
from functools import partial
from typing import Any, cast

from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import Conflict, Forbidden, Unauthorized
from app.observe.catalogue.access import TokenChanged, TokenCreated, TokenRevoked
from app.schemas.access.tokens import RoleName, TokenAnswer, TokenList, TokenMade, TokenPatch, TokenPost, Whoami
from app.schemas.base.listing import PageRequest
from app.services.access import credentials
from app.services.access.auth import Auth
from app.services.access.credentials import SETUP_ID
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.expiry import expiry
from app.services.base.merge import patched
from app.services.base.principals import RESERVED, Principal
from app.store.access import audit, tokens
from app.store.access.tokens import SETUP_ROLE, TokenRow
from app.store.base.database import Database
from dataplane.protocol.salts import salt_of, shown

SORTABLE = tokens.SORTABLE
"""Fields by which the list can be sorted."""


class Tokens:
    def __init__(self, database: Database, changes: Changes, auth: Auth) -> None:
        self._database = database
        self._changes = changes
        self._auth = auth

    async def make(self, request: TokenPost, by: Principal) -> TokenMade:
        """Create a token. Raises Invalid, Forbidden, Conflict; Unauthorized if the setup token was already used."""
        now = time.time()
        salts, expires_at = _checked(request, now)
        _check_not_more(request.role, salts, by)
        token = credentials.new_token()
        row = TokenRow(
            id=token.id,
            name=request.name,
            role=request.role,
            tenants=salts,
            hash=self._auth.hasher.token(token),
            created_by=by.actor,
            created_at=now,
            expires_at=expires_at,
            last_used_from="",
        )
        async with self._changes.begin(by) as change:
            await audit.lock(change.session)  # of two concurrent requests, only one creates the first token
            setup_existed = await tokens.drop_setup(change.session)
            if by.token_id == SETUP_ID and not setup_existed:
                raise Unauthorized("the setup token was used already")
            is_first = by.token_id == SETUP_ID or not await tokens.exist(change.session)
            if is_first and request.role != "admin" and not self._auth.configured_hash:
                raise Forbidden(
                    "the first token must have the role admin and no tenants, because it creates the others"
                )
            await _check_free(change.session, request.name)
            change.session.add(row)
            change.noted("create", "token", row.name, None, _audited(row), event=TokenCreated(row.name))
        self._auth.forget(row.id)
        self._auth.forget(SETUP_ID)
        return TokenMade(**_fields(row), token=token.text)

    async def page(self, page_request: PageRequest) -> TokenList:
        """Return a page of tokens. Raises Invalid."""
        async with self._database.read() as session:
            page = await tokens.page(session, page_request)
        return TokenList([_answer(row) for row in page.rows], total=page.total, next_cursor=page.next_cursor)

    async def get(self, key: str) -> TokenAnswer:
        """Return a token by id or by name. Raises NotFound."""
        async with self._database.read() as session:
            return _answer(await _token_row(session, key))

    async def patch(self, key: str, patch: dict[str, Any], by: Principal) -> TokenAnswer:
        """Change the name or the expiry. Raises Invalid, NotFound, Conflict."""
        now = time.time()
        request = patched(TokenPatch, {}, patch)
        never = patch.get("expires_at", 0) is None
        faults = checks.Faults()
        for name in ("name", "ttl_s"):
            if patch.get(name, 0) is None:
                faults.add(name, "expected a value; only expires_at can be null, for never")
        if isinstance(request.name, str):
            faults.check("name", lambda: _name(str(request.name)))
        ttl_s = request.ttl_s if isinstance(request.ttl_s, float | int) else None
        at = request.expires_at if isinstance(request.expires_at, float | int | str) else None
        expires_at = expiry(ttl_s, at, now, faults)
        faults.stop()
        async with self._changes.begin(by) as change:
            row = await _token_row(change.session, key)
            before = _audited(row)
            if isinstance(request.name, str) and request.name != row.name:
                await _check_free(change.session, request.name)
                row.name = request.name
            if expires_at is not None or never:
                row.expires_at = expires_at
            if before != _audited(row):
                change.noted("update", "token", row.name, before, _audited(row), event=TokenChanged(row.name))
        self._auth.forget(row.id)
        return _answer(row)

    async def revoke(self, key: str, by: Principal) -> None:
        """Revoke a token. Raises NotFound; Conflict if no admin token would remain."""
        async with self._changes.begin(by) as change:
            await audit.lock(change.session)  # of two admins who revoke each other, one remains
            row = await _token_row(change.session, key)
            await self._check_not_last(change, row)
            change.noted("delete", "token", row.name, _audited(row), None, event=TokenRevoked(row.name))
            await change.session.delete(row)
        self._auth.forget(row.id)

    async def _check_not_last(self, change: Change, row: TokenRow) -> None:
        valid = row.expires_at is None or row.expires_at > change.now
        if row.role != "admin" or not valid or self._auth.configured_hash:
            return
        if not await tokens.other_admins(change.session, row.id, change.now):
            raise Conflict(
                f"the token {row.name!r} is the last valid one of an admin: make another one first "
                "('larder tokens create NAME --role admin')"
            )


def whoami(by: Principal) -> Whoami:
    return Whoami(**identity_fields(by))


def identity_fields(by: Principal) -> dict[str, Any]:
    return {
        "actor": by.actor,
        "role": by.role,
        "tenants": None if by.salts is None else sorted(shown(salt) for salt in by.salts),
        "token_id": by.token_id,
        "session": by.session,
        "source": by.source,
    }


def _checked(request: TokenPost, now: float) -> tuple[list[str] | None, float | None]:
    """Return the salts and the expiry. Raises Invalid."""
    faults = checks.Faults()
    faults.check("name", lambda: _name(request.name))
    salts: list[str] | None = None
    if request.tenants is not None:
        paths = [f"tenants[{at}]" for at in range(len(request.tenants))]
        checked_salts = [
            faults.check(path, partial(_salt, name, path)) for path, name in zip(paths, request.tenants, strict=True)
        ]
        salts = sorted({salt for salt in checked_salts if salt is not None})
        if not request.tenants:
            faults.add("tenants", "expected at least one tenant, or null for all")
        if request.role == "admin":
            faults.add("role", "an admin is not limited to tenants: expected viewer or operator, or no tenants")
        if request.role == "alerts":
            faults.add(
                "role", "the role alerts cannot be limited to tenants: expected viewer or operator, or no tenants"
            )
    expires_at = expiry(request.ttl_s, request.expires_at, now, faults)
    faults.stop()
    return salts, expires_at


def _salt(name: str, path: str) -> str:
    salt_of(name, path)  # reports faults with the whole path
    return checks.new_tenant(name)


def _name(name: str) -> str:
    checks.pin_name(name)
    if name in RESERVED:
        raise ValueError(f"expected another name: {name!r} is a reserved name of the audit log")
    return name


def _check_not_more(role: RoleName, salts: list[str] | None, by: Principal) -> None:
    """Check that the caller grants only rights that it has. Raises Forbidden."""
    if not by.may(role):
        raise Forbidden(f"{by.actor!r} has the role {by.role!r} and cannot give {role!r}")
    for salt in salts or ():
        by.check_salt(salt)
    if salts is None:
        by.check_whole("a token without tenants")


async def _check_free(session: AsyncSession, name: str) -> None:
    if await tokens.named(session, name) is not None:
        raise Conflict.at("name", f"there is a token {name!r} already")


async def _token_row(session: AsyncSession, key: str) -> TokenRow:
    row = await session.get(TokenRow, key) or await tokens.named(session, key)
    if row is None or row.role == SETUP_ROLE:
        raise checks.missing("token", key)
    return row


def _audited(row: TokenRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "role": row.role,
        "tenants": None if row.tenants is None else [shown(salt) for salt in row.tenants],
        "expires_at": row.expires_at,
    }


def _fields(row: TokenRow) -> dict[str, Any]:
    return {
        **_audited(row),
        "role": cast(RoleName, row.role),
        "created_by": row.created_by,
        "created_at": row.created_at,
        "expired": row.expires_at is not None and row.expires_at <= time.time(),
        "last_used_at": row.last_used_at,
        "last_used_from": row.last_used_from,
    }


def _answer(row: TokenRow) -> TokenAnswer:
    return TokenAnswer(**_fields(row))
