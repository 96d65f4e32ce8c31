"""The outermost layer, for every request, also for unknown routes: request id, principal, security headers, log,
counters.

A hostile page must not use a visitor's browser to reach Larder, neither with a session nor while no token is needed.
Pages of another origin may not call the API, and a foreign name that was made to resolve to this server (DNS rebinding)
is rejected. A rebound request must carry a DNS name in Host, so IP addresses are safe; `allowed_hosts` adds the names
of this server.

This layer identifies the caller; the guard of each route decides whether the caller may use it, because a page of the
dashboard must load before its user has logged in. A refusal is written to the audit before the answer is sent.
"""

import asyncio
import ipaddress
import logging
import os
import re
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import structlog
from litestar.types import ASGIApp, Message, Receive, Send

from app.errors import Forbidden, ForeignOrigin, LarderError, Malformed, Stopping, StoreUnavailable, Unauthorized
from app.http.cookies import session_cookie
from app.http.middleware.source import ClientAddresses, trace_id
from app.http.negotiation import suffix_of
from app.http.principals import serve_as
from app.http.problems import CRASHED, MEDIA_TYPE, REFUSAL, encode, headers_of, problem
from app.observe.histogram import LatencyHistogram
from app.services.access.auth import Auth, Credentials, WrongToken
from app.services.access.credentials import same
from app.services.base.principals import LOCAL, Principal

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._~!$&'()*+;=-]+)(?::(\d{0,5}))?", re.ASCII | re.IGNORECASE)
"""`Host` as in RFC 9110 §7.2, without percent signs and IPv6 zones, which no server name has."""
MAX_PORT = 65_535
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HEALTH = frozenset({"/healthz", "/readyz", "/healthz/fleet"})
_WITHOUT_HOST = _HEALTH | {"/metrics"}
HEALTH_TIMEOUT_S = 3.0
"""Seconds after which a health check is answered although the database has not: the caller is looked up there first,
and then it is queried."""
SURE_S = 1.0
"""Seconds between checks that the token of a stream is still valid."""
_NO_ANSWER = f"the database did not answer within {HEALTH_TIMEOUT_S:g} s; try again"
UNANNOUNCED = (
    "a proxy forwarded this request, and only direct requests of this machine need no token: create a token "
    "('larder tokens create NAME --role admin' on the machine itself) and name the proxy in "
    "LARDER_APP__TRUSTED_PROXIES, or set LARDER_APP__AUTH=required"
)
"""Reason to refuse a forwarded request that reaches a loopback address from a proxy that the settings do not name."""
SECURITY_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


UNMATCHED = "unmatched"
_METHODS = frozenset({"GET", "HEAD", "PUT", "PATCH", "DELETE", "POST", "OPTIONS"})
_DASHBOARD = "/{path}"
"""Route that takes every path that no other takes."""


@dataclass
class RequestCounts:
    """Answers since the process started. Routes are templates such as `/api/v1/quotas/{tenant}`."""

    ended: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Number by method, route and status."""
    seconds: dict[tuple[str, str], LatencyHistogram] = field(default_factory=dict)
    """Durations by method and route, without those of event streams."""

    def count(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Record an answer. `seconds` is None for an event stream, because its client decides how long it lasts."""
        method = method if method in _METHODS else "other"
        self.ended[method, route, status] = self.ended.get((method, route, status), 0) + 1
        if seconds is not None:
            durations = self.seconds.get((method, route))
            if durations is None:
                durations = self.seconds[method, route] = LatencyHistogram()
            durations.observe(seconds)


class MiddlewareStack:
    """ASGI layer that identifies callers, checks hosts and origins, and logs and counts requests."""

    def __init__(
        self,
        app: ASGIApp,
        counts: RequestCounts,
        allowed_hosts: Iterable[str],
        allowed_origins: Iterable[str],
        auth: Auth,
        sources: ClientAddresses,
    ) -> None:
        self._app = app
        self._auth = auth
        self._sources = sources
        self._counts = counts
        names = {_name(name) for name in allowed_hosts}
        # An IPv4 address has no absolute form, and see `_name` for `localhost.`.
        absolute = {f"{name}." for name in names - {"localhost"} if not name.rpartition(".")[2].isdigit()}
        self._hosts = frozenset({"localhost", *names, *absolute})
        self._origins = frozenset(origin.lower() for origin in allowed_origins)
        self._log = structlog.get_logger()

    @cached_property
    def _access_log(self) -> Any:
        """A logger that is bound once, as of the first request; others bind themselves for each line."""
        return self._log.bind()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        headers = _headers(scope["headers"])
        offered = headers.get(b"x-request-id", "")
        request_id = offered if _REQUEST_ID.fullmatch(offered) else os.urandom(16).hex()
        started = time.perf_counter()
        status, is_stream = 0, False
        failure: LarderError | None = None
        attempt = self._attempt(scope, headers, request_id)
        identity: Principal | LarderError | None = None
        sure_until = started + SURE_S

        async def answer(message: Message) -> None:
            nonlocal status, is_stream, sure_until
            if message["type"] == "http.response.start":
                is_due = failure is None and time.perf_counter() >= sure_until
                if isinstance(identity, Principal) and method in _SAFE and is_due:
                    # A caller whose token was revoked while the request waited must not see the state after the
                    # revocation.
                    await still(identity, "request")
                if message["status"] in (401, 403):
                    await self._keep_refusal(message["status"], identity, attempt, scope)
                status = message["status"]
                is_stream = any(
                    name == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message["headers"]
                )
                extra = [*SECURITY_HEADERS, (b"x-request-id", request_id.encode())]
                message["headers"] = [*message["headers"], *extra]
            elif isinstance(identity, Principal) and message.get("more_body") and time.perf_counter() >= sure_until:
                # A stream must not outlive the token that opened it.
                await still(identity, "stream")
            await send(message)

        async def still(principal: Principal, kind: str) -> None:
            nonlocal sure_until
            sure_until = time.perf_counter() + SURE_S
            if not await self._auth.still(attempt, principal):
                raise Unauthorized(f"the token of this {kind} is no longer valid")

        with structlog.contextvars.bound_contextvars(request_id=request_id), ExitStack() as exit_stack:
            try:
                self._check(scope, headers)
                if len(headers) < len(scope["headers"]):
                    scope["headers"] = [(name, text.encode("latin-1")) for name, text in headers.items()]
                async with asyncio.timeout(HEALTH_TIMEOUT_S if _without_slash(path) in _HEALTH else None):
                    identity = await self._identify(method, attempt, headers, scope)
                    serve_as(identity, attempt, exit_stack)
                    await self._app(scope, receive, answer)
            except LarderError as error:
                failure = error
            except TimeoutError as error:
                failure = StoreUnavailable(_NO_ANSWER) if _without_slash(path) in _HEALTH else self._crash(error, path)
            except asyncio.CancelledError:
                # Only the server cancels, at the end of the grace time, and would log a traceback for each request.
                failure = Stopping("the server stopped before this request ended; try again")
            except Exception as error:  # noqa: BLE001 - no outer layer answers with a problem
                failure = self._crash(error, path)
            if failure is not None and not status:
                await _refuse(failure, path, request_id, answer)
            seconds = time.perf_counter() - started
            self._counts.count(method, _route(scope, status), status, None if is_stream else seconds)
            self._ended(method, path, status, seconds)
            # The traceback of a refusal refers to this scope: the cycle would keep the body in memory.
            scope.get("state", {}).pop(REFUSAL, None)

    def _attempt(self, scope: Any, headers: dict[bytes, str], request_id: str) -> Credentials:
        cookies = headers.get(b"cookie", "")
        cookie = cookies and session_cookie(cookies, secure=self._sources.is_secure(scope, headers))
        return Credentials(
            headers.get(b"authorization"), cookie, request_id, self._sources.address(scope, headers), trace_id(headers)
        )

    async def _identify(
        self, method: str, attempt: Credentials, headers: dict[bytes, str], scope: Any
    ) -> Principal | LarderError:
        """Return the principal, or the error that prevented its identification. The error is returned, not raised,
        because public routes are served anyway."""
        try:
            principal = await self._auth.identify(attempt)
        except LarderError as error:
            return error
        if principal.actor == LOCAL and self._sources.is_unannounced(scope, headers):
            return Forbidden(UNANNOUNCED)
        if principal.session and method not in _SAFE:
            expected = self._auth.hasher.csrf(attempt.cookie)
            if not same(headers.get(b"x-csrf-token", ""), expected):
                return Forbidden("expected the header X-CSRF-Token with the token that GET /api/v1/session returns")
        return principal

    async def _keep_refusal(
        self, status: int, identity: Principal | LarderError | None, attempt: Credentials, scope: Any
    ) -> None:
        """Record a refusal. A failure to record it does not change the answer."""
        try:
            await self._refused(status, identity, attempt, scope)
        except LarderError as error:
            self._log.warning("audit.failed", reason=error.message)
        except Exception as error:  # noqa: BLE001 - the answer must still be sent
            self._log.exception("audit.failed", path=scope["path"], exc_info=error)

    async def _refused(
        self, status: int, identity: Principal | LarderError | None, attempt: Credentials, scope: Any
    ) -> None:
        """Count a 401 and audit a Forbidden. A wrong token was already counted when it was checked."""
        reason = scope.get("state", {}).get(REFUSAL)
        if status == 401 and not isinstance(reason, WrongToken):
            self._auth.failures["session" if attempt.cookie else "missing"] += 1
        if not isinstance(reason, Forbidden):
            return
        by = identity if isinstance(identity, Principal) else await self._auth.identify(attempt, again=True)
        await self._auth.refused(by, scope["method"], scope["path"], reason.message)

    def _crash(self, error: Exception, path: str) -> LarderError:
        wrapped = _wrapped_error(error)
        if wrapped is not None:  # a stream broke off: the client sees that it is incomplete
            self._log.warning("request.interrupted", path=path, code=wrapped.code, reason=wrapped.message)
            return wrapped
        self._log.exception("request.crashed", path=path, exc_info=error)
        return LarderError(CRASHED)

    def _ended(self, method: str, path: str, status: int, seconds: float) -> None:
        # Health checks run every few seconds, also while they fail.
        is_notable = method not in _SAFE or (status >= 400 and _without_slash(path) not in _HEALTH)
        level = logging.INFO if is_notable else logging.DEBUG
        if self._access_log.is_enabled_for(level):
            self._access_log.log(
                level, "request.ended", method=method, path=path, status=status, ms=round(seconds * 1e3, 1)
            )

    def _check(self, scope: Any, headers: dict[bytes, str]) -> None:
        self._check_path(scope["raw_path"])
        if b"%00" in scope["query_string"]:
            raise Malformed("a NUL character cannot be part of a parameter")
        method = scope["method"]
        if _is_old_health_check(scope, headers):
            return
        host, name = _host(scope["headers"])
        if not self._is_ours(name):
            raise ForeignOrigin(
                f"the Host header {host[:80]!r} is not a name of this server: use localhost or an IP address, "
                "or add the name to LARDER_APP__ALLOWED_HOSTS"
            )
        origin = headers.get(b"origin", "").lower()
        if origin and not _is_of_host(origin, host) and origin not in self._origins:
            raise ForeignOrigin(
                f"pages of {origin[:80]!r} may not call this API; LARDER_APP__ALLOWED_ORIGINS names those that may"
            )
        if not origin and method not in _SAFE and headers.get(b"sec-fetch-site") in ("cross-site", "same-site"):
            raise ForeignOrigin("a page of another site may not call this API")

    @staticmethod
    def _check_path(raw_path: bytes) -> None:
        path = raw_path.partition(b"?")[0]
        if b"%2f" in path.lower():
            raise Malformed("an encoded slash cannot be part of a name")
        try:
            text = unquote_to_bytes(path).decode()
        except UnicodeDecodeError:
            raise Malformed("the path is not UTF-8") from None
        if "\0" in text:
            raise Malformed("a NUL character cannot be part of a name")

    def _is_ours(self, name: str) -> bool:
        if name in self._hosts:
            return True
        try:
            if name.startswith("["):
                ipaddress.IPv6Address(name[1:-1])
            else:
                ipaddress.IPv4Address(name)
        except ValueError:
            return False
        return True


def _route(scope: Any, status: int) -> str:
    """Return the template of the route that served a request; UNMATCHED if none did."""
    template = scope.get("path_template", UNMATCHED)
    if template == _DASHBOARD and status == 404:
        return UNMATCHED
    handler = scope.get("route_handler")
    return str(template) if handler is None else f"{template}{suffix_of(handler, scope['path'])}"


def _wrapped_error(error: BaseException | None) -> LarderError | None:
    """Return the LarderError that other exceptions wrap, or None."""
    while error is not None and not isinstance(error, LarderError):
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    return error


def _headers(sent: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """Return the headers by lower-case name. Lines of the same name are joined (RFC 9110 §5.3): together they are a
    list of ETags, and no valid token or content type."""
    headers: dict[bytes, str] = {}
    for name, value in sent:
        key, text = name.lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _host(sent: Iterable[tuple[bytes, bytes]]) -> tuple[str, str]:
    """Return the `Host` header as the client sent it, and its name in lower case. Raises Malformed."""
    values = [value.decode("latin-1") for name, value in sent if name.lower() == b"host"]
    match = _HOST.fullmatch(values[0]) if len(values) == 1 else None
    if match is None or int(match[2] or 0) > MAX_PORT:
        actual = ", ".join(map(repr, values))[:80] or "none"
        message = f"expected one name or IP address, with a port from 0 to {MAX_PORT} or none, got {actual}"
        raise Malformed.at("Host", message)
    return match[0], match[1].lower()


def _name(text: str) -> str:
    """Return a host name in lower case, without the final dot of an absolute name.

    `localhost.` keeps its dot: some resolvers ask the network for it, and its answer would allow DNS rebinding.
    """
    text = text.lower()
    return text if text == "localhost." else text.removesuffix(".")


def _without_slash(path: str) -> str:
    """Return a path as the router takes it, without slashes at its end."""
    return path.rstrip("/") or "/"


def _is_old_health_check(scope: Any, headers: dict[bytes, str]) -> bool:
    """Return whether a load balancer or a scraper of HTTP/1.0 sends no `Host`, or an empty one. A browser, which DNS
    rebinding needs, always names the host. The answer to `OPTIONS` has nothing but methods."""
    if scope["http_version"] != "1.0" or headers.get(b"host") or b"origin" in headers:
        return False
    reads_health = scope["method"] in ("GET", "HEAD") and _without_slash(scope["path"]) in _WITHOUT_HOST
    return reads_health or scope["method"] == "OPTIONS"


def _is_of_host(origin: str, host: str) -> bool:
    """Return whether an origin has the name and the port of a `Host` header. Either may omit the default port of the
    origin's scheme."""
    try:
        parts = urlsplit(origin)
    except ValueError:  # such as "http://["
        return False
    default = _DEFAULT_PORTS.get(parts.scheme, "")
    names = [
        (_name(match[1]), match[2] or default)
        for match in map(_HOST.fullmatch, (parts.netloc, host))
        if match is not None
    ]
    return len(names) == 2 and names[0] == names[1]


async def _refuse(error: LarderError, path: str, request_id: str, send: Send) -> None:
    body = problem(error.code, error.message, path, request_id, error.errors)
    content = encode(body)
    await send(
        {
            "type": "http.response.start",
            "status": body.status,
            "headers": [
                (b"content-type", MEDIA_TYPE.encode()),
                (b"content-length", str(len(content)).encode()),
                (b"connection", b"close"),
                *((name.encode(), text.encode()) for name, text in headers_of(error, body.status).items()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": content, "more_body": False})
