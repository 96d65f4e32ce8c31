"""/api/v1/session: a browser logs in with a token and gets a session cookie."""

from litestar import Response, Router, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody

from app.http.body import StrictRequest
from app.http.cookies import session_cookie, set_session
from app.http.middleware.source import ClientAddresses
from app.http.operation import operation
from app.http.principals import caller, origin
from app.schemas.access.tokens import SessionAnswer, SessionPost
from app.services.access.sessions import SESSION_S, LoginSessions

CSRF_HEADER = "X-CSRF-Token"
MAX_BODY_BYTES = 4096
"""For all callers, because a login comes first."""
_NO_STORE = {"Cache-Control": "no-store"}


@operation(post, "/", role="anyone", request_max_body_size=MAX_BODY_BYTES)
async def log_in(
    request: StrictRequest,
    sessions: NamedDependency[LoginSessions],
    sources: NamedDependency[ClientAddresses],
    data: JSONBody[SessionPost],
) -> Response[SessionAnswer]:
    """Log in with a token; the answer sets a session cookie that is valid for 12 hours."""
    cookie, answer = await sessions.log_in(data.token, origin())
    return Response(
        answer,
        headers={CSRF_HEADER: answer.csrf_token, **_NO_STORE},
        cookies=[set_session(cookie, SESSION_S, secure=_secure(request, sources))],
    )


@operation(get, "/", role="viewer", scoped=True)
async def get_session(
    request: StrictRequest, sessions: NamedDependency[LoginSessions], sources: NamedDependency[ClientAddresses]
) -> Response[SessionAnswer]:
    """Get the identity of the session, and the CSRF token that changes need (`X-CSRF-Token`)."""
    answer = await sessions.get(_cookie(request, sources), caller())
    return Response(answer, headers={CSRF_HEADER: answer.csrf_token, **_NO_STORE})


@operation(
    delete, "/", role="viewer", scoped=True, answers={204: ResponseSpec(None, description="The session has ended.")}
)
async def log_out(
    request: StrictRequest, sessions: NamedDependency[LoginSessions], sources: NamedDependency[ClientAddresses]
) -> Response[None]:
    """End the session."""
    await sessions.log_out(_cookie(request, sources), caller())
    return Response(None, status_code=204, cookies=[set_session("", 0, secure=_secure(request, sources))])


def _cookie(request: StrictRequest, sources: ClientAddresses) -> str:
    return session_cookie(request.headers.get("cookie", ""), secure=_secure(request, sources))


def _secure(request: StrictRequest, sources: ClientAddresses) -> bool:
    headers = {name: value.decode("latin-1") for name, value in request.scope["headers"]}
    return sources.is_secure(request.scope, headers)


router = Router("/session", route_handlers=[log_in, get_session, log_out], tags=["session"])
