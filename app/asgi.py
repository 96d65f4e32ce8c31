"""The ASGI application: routes, the injection of services, and middleware."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException, NotFoundException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, License
from litestar.types import ASGIApp, Receive, Send

from app import __version__
from app.compose import Parts
from app.errors import LarderError
from app.http.body import StrictRequest
from app.http.description import DescribedOperation
from app.http.manual import manual, manual_start
from app.http.middleware.conditional import ConditionalResponses
from app.http.middleware.stack import MiddlewareStack
from app.http.middleware.tracing import traced
from app.http.negotiation import negotiate
from app.http.principals import guard
from app.http.problems import on_crash, on_http_error, on_larder_error
from app.http.routes.access import audit, session, tokens
from app.http.routes.cache import actions, blocks, requests, sessions
from app.http.routes.documents.apply import router as apply_router
from app.http.routes.fleet import managers, nodes
from app.http.routes.lmcache import objects
from app.http.routes.records import prefixes, records, tenants
from app.http.routes.usage.reports import get_usage
from app.http.routes.views import alerts, findings, overview, series
from app.http.routes.views.events import EventMessages, list_events, stream_events
from app.http.routes.views.health import get_fleet_health, get_health, get_ready
from app.http.routes.views.metrics import metrics
from app.http.routes.views.snapshot import get_snapshot
from app.http.web import WebFiles, docs, home, page
from app.manager_samples import scrapes_of
from app.runtime import BackgroundTasks
from app.settings import AppSettings, Settings
from dataplane.base import tracing

DESCRIPTION_PATH = "/api/openapi.json"
WEB_DIST = Path(__file__).parents[1] / "web" / "dist"
SERVICES = {
    "records": "records.services",
    "pins": "records.pins",
    "tenants": "records.tenants",
    "prefixes": "records.prefixes",
    "nodes": "fleet_services.nodes",
    "node_actions": "fleet_services.node_actions",
    "enrolment": "fleet_services.enrolment",
    "pushes": "fleet_services.pushes",
    "audit": "access.audit",
    "managers": "foundation.managers",
    "restarts": "fleet_services.restarts",
    "tokens": "access.tokens",
    "sessions": "access.sessions",
    "sources": "limits.sources",
    "stream_slots": "limits.stream_slots",
    "actions": "cache.actions",
    "lookups": "cache.lookups",
    "lmcache": "lmcache.objects",
    "lmcache_quotas": "lmcache.quotas",
    "lmcache_status": "lmcache.status",
    "dry_runs": "cache.dry_runs",
    "blocks": "cache.blocks",
    "request_records": "cache.requests",
    "agent_sessions": "cache.sessions",
    "traces": "cache.traces",
    "alerts": "views.alerts",
    "events": "views.events",
    "applied_changes": "views.applied_changes",
    "usage": "usage.reports",
    "apply": "documents.apply",
    "export": "documents.export",
    "overview": "views.overview",
    "findings": "views.findings",
    "series": "views.series",
    "snapshots": "views.snapshots",
    "health": "views.health",
}
"""Attributes of `Parts`, by the names under which handlers receive them."""


class App(MiddlewareStack):
    """The application with its parts, for the process that runs it and for tests."""

    def __init__(self, parts: Parts, litestar: Litestar) -> None:
        settings = parts.settings
        super().__init__(
            ConditionalResponses(litestar),
            parts.limits.counts,
            allowed_hosts=[*_listed(settings.app.allowed_hosts), settings.common.http_host],
            allowed_origins=_listed(settings.app.allowed_origins),
            auth=parts.access.auth,
            sources=parts.limits.sources,
        )
        self.parts = parts
        self.litestar = litestar

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if tracing.on() and scope["type"] == "http":
            await traced(super().__call__, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(settings: Settings, url: str = "") -> App:
    """Wire everything for these settings. `url` is where it is served, which the list of managers shows. Nothing is
    opened before the lifespan starts."""
    parts = Parts(settings, url)
    litestar = routed(settings.app)
    litestar.state.parts = parts
    litestar.state.scrapes = scrapes_of(parts)
    litestar.state.messages = EventMessages(parts.bus, parts.views.overview)
    litestar.state.web_files = WebFiles(Path(settings.app.web_dist or WEB_DIST))
    litestar.state.open_to_all = _open_to_all(settings.app)
    return App(parts, litestar)


@asynccontextmanager
async def _lifespan(app: Litestar) -> AsyncIterator[None]:
    runtime = BackgroundTasks(app.state.parts)
    try:
        await runtime.start()
        yield
    finally:
        await runtime.stop()


def routed(settings: AppSettings) -> Litestar:
    """Return an application with every route. Handlers receive services of `state.parts`, which `create_app` sets."""

    def part(path: str) -> _Part:
        get = attrgetter(path)
        return _Part(lambda: get(app.state))

    api = Router(
        "/api/v1",
        route_handlers=[
            *records.routers,
            tenants.router,
            prefixes.router,
            *nodes.routers,
            audit.router,
            *managers.routers,
            tokens.router,
            tokens.whoami,
            session.router,
            actions.router,
            blocks.router,
            requests.router,
            sessions.router,
            get_usage,
            apply_router(settings.apply_limit_bytes),
            findings.router,
            overview.router,
            series.router,
            stream_events,
            list_events,
            alerts.router,
            alerts.list_annotations,
            get_snapshot,
        ],
        opt={"negotiated": True},
    )
    app = Litestar(
        route_handlers=[
            *(api, docs, manual, manual_start, get_health, get_fleet_health, get_ready, metrics, home, page),
            *([objects.router] if settings.lmcache_api else []),
        ],
        middleware=[_admitted],
        dependencies={
            **{name: part(f"parts.{path}") for name, path in SERVICES.items()},
            "messages": part("messages"),
            "scrapes": part("scrapes"),
            "web_files": part("web_files"),
        },
        lifespan=[_lifespan],
        request_class=StrictRequest,
        request_max_body_size=settings.body_limit_bytes,
        exception_handlers={LarderError: on_larder_error, HTTPException: on_http_error, Exception: on_crash},
        openapi_config=_openapi(),
        logging_config=None,
    )
    return app


def _admitted(app: ASGIApp) -> ASGIApp:
    """Raise a LarderError for a caller or a request that the route does not serve. This is no guard of Litestar, which
    would copy the handler for each request."""

    async def serve(scope: Any, receive: Receive, send: Send) -> None:
        handler = scope["route_handler"]
        guard(scope, handler)
        if handler.opt.get("negotiated"):
            negotiate(scope, handler)
        await app(scope, receive, send)

    return serve


def _open_to_all(app: AppSettings) -> frozenset[str]:
    """Return the names of the enabled settings that open routes to callers without a token."""
    return frozenset(name for name in ("anonymous_metrics", "anonymous_health") if getattr(app, name))


def _openapi() -> OpenAPIConfig:
    described = DescribedOperation()

    async def only_the_description(request: Request[Any, Any, Any]) -> None:
        """Raise NotFound for other paths, because the framework would answer them with its own HTML."""
        if request.url.path != DESCRIPTION_PATH:
            raise NotFoundException
        await described.prepare(request.app)

    return OpenAPIConfig(
        title="Larder",
        version=__version__,
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        components=Components(),
        use_handler_docstrings=False,
        openapi_router=Router(
            "/api",
            route_handlers=[],
            include_in_schema=False,
            before_request=only_the_description,
            opt={"role": "anyone"},
        ),
        render_plugins=[described],
    )


class _Part(Provide):
    """Provide a part of the application's state. Litestar compares each provider with all others, for each
    handler (130,000 comparisons), so providers compare by identity."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, get: Callable[[], Any]) -> None:
        super().__init__(get, sync_to_thread=False)


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
