"""The outermost layer, for every request, known route or not: request id, who asks, headers, log, counters.

A browser must not be usable against us, with a session or while nobody needs a token: a page of another origin may not
call the API, and a foreign name that was made to resolve to us (DNS rebinding) is not ours. A rebound request must
carry a DNS name in Host, so IP addresses are safe; `allowed_hosts` adds names that are ours.

Who asks is found out here, and whether that is enough for a route is said by its guard: a page of the dashboard must
load for somebody who has yet to log in. What a caller is refused is in the audit before the answer is sent.
"""

import asyncio
import ipaddress
import re
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit
from uuid import uuid4

import structlog
from litestar.types import ASGIApp, Message, Receive, Send

from app.errors import Forbidden, ForeignOrigin, LarderError, Malformed, Stopping, Unauthorized
from app.http.callers import serve_as
from app.http.cookies import session_cookie
from app.http.problems import CRASHED, MEDIA_TYPE, REFUSAL, encode, headers_of, problem
from app.http.source import Sources, trace_id
from app.services.auth import Attempt, Auth, WrongToken
from app.services.callers import LOCAL, Caller
from app.services.credentials import same

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
SURE_S = 1.0
"""How long a stream goes on before it is asked again whether its token is valid."""
UNANNOUNCED = (
    "a proxy sent this request on behalf of somebody, and only requests of this machine need no token: make a token "
    "('larder tokens create NAME --role admin' on the machine itself) and name the proxy in "
    "LARDER_APP__TRUSTED_PROXIES, or set LARDER_APP__AUTH=required"
)
"""Why a request is refused that reaches a loopback address and does not come from there."""
SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass
class RequestCounts:
    """Answers by method and status, since the process started."""

    ended: dict[tuple[str, int], int] = field(default_factory=dict)


class Edge:
    """Wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        counts: RequestCounts,
        allowed_hosts: Iterable[str],
        allowed_origins: Iterable[str],
        auth: Auth,
        sources: Sources,
    ) -> None:
        self._app = app
        self._auth = auth
        self._sources = sources
        self._counts = counts
        self._hosts = frozenset({"localhost", *(name.lower() for name in allowed_hosts)})
        self._origins = frozenset(origin.lower() for origin in allowed_origins)
        self._log = structlog.get_logger()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        headers = _headers(scope["headers"])
        offered = headers.get(b"x-request-id", "")
        request_id = offered if _REQUEST_ID.fullmatch(offered) else uuid4().hex
        started = time.perf_counter()
        status = 0
        attempt = self._attempt(scope, headers, request_id)
        known: Caller | LarderError | None = None
        sure_until = started + SURE_S

        async def answer(message: Message) -> None:
            nonlocal status, sure_until
            if message["type"] == "http.response.start":
                if isinstance(known, Caller) and method in _SAFE and time.perf_counter() >= sure_until:
                    # Nor an answer that was waited for: what changed meanwhile is not for who was revoked meanwhile.
                    await still(known, "request")
                if message["status"] in (401, 403):
                    await self._keep_refusal(message["status"], known, attempt, scope)
                status = message["status"]
                extra = [*SECURITY_HEADERS, (b"x-request-id", request_id.encode())]
                message["headers"] = [*message["headers"], *extra]
            elif isinstance(known, Caller) and message.get("more_body") and time.perf_counter() >= sure_until:
                # A stream must not outlive the token that it was opened with.
                await still(known, "stream")
            await send(message)

        async def still(asks: Caller, what: str) -> None:
            nonlocal sure_until
            sure_until = time.perf_counter() + SURE_S
            if not await self._auth.still(attempt, asks):
                raise Unauthorized(f"the token of this {what} is not valid any more")

        failure: LarderError | None = None
        with structlog.contextvars.bound_contextvars(request_id=request_id), ExitStack() as ending:
            try:
                self._check(method, headers, scope["raw_path"], scope["query_string"])
                known = await self._identify(method, attempt, headers, scope)
                serve_as(known, attempt, ending)
                await self._app(scope, receive, answer)
            except LarderError as error:
                failure = error
            except asyncio.CancelledError:
                # Only the server cancels, at the end of its grace time, and would log a traceback for each request.
                failure = Stopping("the server stops and did not wait longer for this request; try again")
            except Exception as error:  # noqa: BLE001 - nobody else would answer with a problem
                failure = self._crash(error, path)
            if failure is not None and not status:
                await _refuse(failure, path, request_id, answer)
            self._ended(method, path, status, time.perf_counter() - started)

    def _attempt(self, scope: Any, headers: dict[bytes, str], request_id: str) -> Attempt:
        cookies = headers.get(b"cookie", "")
        cookie = cookies and session_cookie(cookies, secure=self._sources.is_secure(scope, headers))
        return Attempt(
            headers.get(b"authorization"),
            cookie,
            request_id,
            self._sources.address(scope, headers),
            trace_id(headers) if b"traceparent" in headers else "",
        )

    async def _identify(
        self, method: str, attempt: Attempt, headers: dict[bytes, str], scope: Any
    ) -> Caller | LarderError:
        """Who asks, or why that is not known: what everybody may have is not refused for it."""
        try:
            known = await self._auth.identify(attempt)
        except LarderError as error:
            return error
        if known.actor == LOCAL and self._sources.is_unannounced(scope, headers):
            return Forbidden(UNANNOUNCED)
        if known.session and method not in _SAFE:
            expected = self._auth.hasher.csrf(attempt.cookie)
            if not same(headers.get(b"x-csrf-token", ""), expected):
                return Forbidden(
                    "expected the header X-CSRF-Token with the token that GET /api/v1/session tells"
                )
        return known

    async def _keep_refusal(
        self, status: int, known: Caller | LarderError | None, attempt: Attempt, scope: Any
    ) -> None:
        """A refusal stays one, whether it can be written down or not."""
        try:
            await self._refused(status, known, attempt, scope)
        except LarderError as error:
            self._log.warning("audit.failed", reason=error.message)
        except Exception as error:  # noqa: BLE001 - the answer goes on
            self._log.exception("audit.failed", path=scope["path"], exc_info=error)

    async def _refused(
        self, status: int, known: Caller | LarderError | None, attempt: Attempt, scope: Any
    ) -> None:
        """Count and keep a refusal; wrong tokens were when they were found wrong."""
        why = scope.get("state", {}).get(REFUSAL)
        if status == 401 and not isinstance(why, WrongToken):
            self._auth.counts.failed("session" if attempt.cookie else "missing")
        if not isinstance(why, Forbidden):
            return
        by = known if isinstance(known, Caller) else await self._auth.identify(attempt, again=True)
        await self._auth.refused(by, scope["method"], scope["path"], why.message)

    def _crash(self, error: Exception, path: str) -> LarderError:
        known = _known(error)
        if known is not None:  # a long answer that broke off: the client sees that it is not whole
            self._log.warning("request.broke_off", path=path, code=known.code, reason=known.message)
            return known
        self._log.exception("request.crashed", path=path, exc_info=error)
        return LarderError(CRASHED)

    def _ended(self, method: str, path: str, status: int, seconds: float) -> None:
        known = method if method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "POST", "OPTIONS") else "other"
        self._counts.ended[known, status] = self._counts.ended.get((known, status), 0) + 1
        # Health checks ask every few seconds, also while the answer is no.
        told = method not in _SAFE or (status >= 400 and path not in ("/healthz", "/readyz"))
        level = "info" if told else "debug"
        getattr(self._log, level)(
            "request.ended", method=method, path=path, status=status, ms=round(seconds * 1e3, 1)
        )

    def _check(self, method: str, headers: dict[bytes, str], raw_path: bytes, query: bytes) -> None:
        self._check_path(raw_path)
        if b"%00" in query:
            raise Malformed("a NUL character cannot be part of a parameter")
        host = headers.get(b"host", "")
        if not self._is_ours(host):
            raise ForeignOrigin(
                f"the Host header {host[:80]!r} is not a name of this server: use localhost or an IP address, "
                "or add the name to LARDER_APP__ALLOWED_HOSTS"
            )
        origin = headers.get(b"origin", "").lower()
        if origin and _host_of(origin) != host.lower() and origin not in self._origins:
            raise ForeignOrigin(
                f"pages of {origin[:80]!r} may not call this API; LARDER_APP__ALLOWED_ORIGINS names those that may"
            )
        if (
            not origin
            and method not in _SAFE
            and headers.get(b"sec-fetch-site") in ("cross-site", "same-site")
        ):
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

    def _is_ours(self, host: str) -> bool:
        name = re.sub(r":\d{1,5}$", "", host.lower())
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


def _known(error: BaseException | None) -> LarderError | None:
    """The failure of ours that others have wrapped, if there is one."""
    while error is not None and not isinstance(error, LarderError):
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    return error


def _headers(sent: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """By lower-case name; what is sent several times is joined, so that two tokens are none."""
    headers: dict[bytes, str] = {}
    for name, value in sent:
        key, text = name.lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as "http://[": nobody's
        return None


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
