"""The ASGI application: routes, how they get their services, and what happens around a request."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException, NotFoundException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, License

from app import __version__
from app.compose import Parts, build
from app.errors import LarderError
from app.http import (
    actions,
    audit,
    blocks,
    ceilings,
    joins,
    lmcache,
    nodes,
    overview,
    pins,
    policies,
    prefixes,
    pushes,
    quotas,
    rates,
    replicas,
    session,
    tenants,
    tokenizers,
    tokens,
)
from app.http.answers import Answers
from app.http.apply import router as apply_router
from app.http.body import StrictRequest
from app.http.callers import guard
from app.http.description import Described
from app.http.docs import docs
from app.http.edge import Edge
from app.http.events import list_events
from app.http.health import healthz, readyz
from app.http.metrics import metrics
from app.http.negotiation import negotiate
from app.http.problems import on_crash, on_http_error, on_larder_error
from app.http.snapshot import get_snapshot
from app.http.stream import Messages, stream_events
from app.http.usage import get_usage
from app.http.web import WebFiles, home, page
from app.runtime import Runtime
from app.settings import AppSettings, Settings

DESCRIPTION_PATH = "/api/openapi.json"
WEB_DIST = Path(__file__).parents[1] / "web" / "dist"


class App(Edge):
    """The application with its parts, for the process that runs it and for tests."""

    parts: Parts
    litestar: Litestar


def create_app(settings: Settings) -> App:
    """Wire everything for these settings. Nothing is opened before the lifespan starts."""
    parts = build(settings)
    litestar = _litestar(parts)
    app = App(
        Answers(litestar),
        parts.requests,
        allowed_hosts=[*_listed(settings.app.allowed_hosts), settings.common.http_host],
        allowed_origins=_listed(settings.app.allowed_origins),
        auth=parts.auth,
        sources=parts.sources,
    )
    app.parts, app.litestar = parts, litestar
    return app


def _litestar(parts: Parts) -> Litestar:
    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncIterator[None]:
        runtime = Runtime(parts)
        try:
            await runtime.start()
            yield
        finally:
            await runtime.stop()

    api = Router(
        "/api/v1",
        route_handlers=[
            quotas.router,
            pins.router,
            policies.router,
            tenants.router,
            prefixes.router,
            nodes.router,
            joins.router,
            pushes.router,
            audit.router,
            replicas.router,
            tokens.router,
            ceilings.router,
            tokens.whoami,
            session.router,
            actions.router,
            blocks.router,
            rates.router,
            get_usage,
            tokenizers.router,
            apply_router(parts.settings.app.apply_limit_bytes),
            overview.router,
            stream_events,
            list_events,
            get_snapshot,
        ],
        guards=[negotiate],
    )
    web_files = WebFiles(Path(parts.settings.app.web_dist or WEB_DIST))
    return Litestar(
        route_handlers=[
            *(api, docs, healthz, readyz, metrics, home, page),
            *([lmcache.router] if parts.settings.app.lmcache_api else []),
        ],
        guards=[guard],
        dependencies={
            name: _provide(value)
            for name, value in {
                "quotas": parts.quotas,
                "pins": parts.pins,
                "policies": parts.policies,
                "tenants": parts.tenants,
                "prefixes": parts.prefixes,
                "nodes": parts.nodes,
                "node_intent": parts.node_intent,
                "joins": parts.joins,
                "pushes": parts.pushes,
                "audit": parts.audit,
                "replicas": parts.replicas,
                "tokens": parts.tokens,
                "sessions": parts.sessions,
                "ceilings": parts.ceilings,
                "sources": parts.sources,
                "places": parts.places,
                "actions": parts.actions,
                "lookups": parts.lookups,
                "lmcache": parts.lmcache,
                "lmcache_quotas": parts.lmcache_quotas,
                "lmcache_status": parts.lmcache_status,
                "dry_runs": parts.dry_runs,
                "blocks": parts.blocks,
                "tokenizers": parts.tokenizers,
                "resizing": parts.resizing,
                "traces": parts.traces,
                "rates": parts.rates,
                "usage": parts.usage,
                "apply": parts.apply,
                "export": parts.export,
                "overview": parts.overview,
                "progress": parts.progress,
                "fleet": parts.fleet,
                "messages": Messages(parts.hub, parts.overview),
                "kept": parts.events,
                "snapshots": parts.snapshots,
                "database": parts.database,
                "registry": parts.registry,
                "web_files": web_files,
            }.items()
        },
        state=State({"open_to_all": _open_to_all(parts.settings.app)}),
        lifespan=[lifespan],
        request_class=StrictRequest,
        request_max_body_size=parts.settings.app.body_limit_bytes,
        exception_handlers={
            LarderError: on_larder_error,
            HTTPException: on_http_error,
            Exception: on_crash,
        },
        openapi_config=_openapi(),
        logging_config=None,
    )


def _open_to_all(app: AppSettings) -> frozenset[str]:
    """Settings that open routes to everybody, and are on."""
    return frozenset(name for name in ("open_metrics", "open_health") if getattr(app, name))


def _openapi() -> OpenAPIConfig:
    described = Described(path="/openapi.json")

    async def only_the_description(request: Request[Any, Any, Any]) -> None:
        """The framework would answer at /api and below with HTML of its own."""
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


def _provide(value: Any) -> Provide:
    get: Callable[[], Any] = lambda: value  # noqa: E731
    return Provide(get, sync_to_thread=False)


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
