"""LMCache's HTTP API, at the paths that its command line and scripts use (setting `lmcache_api`).

Answers and statuses are LMCache's; authentication, audit and limits are Larder's. `/env`, `/run_script` and similar
paths are omitted on purpose.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Response, Router, delete, get, post, put
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from app.errors import Invalid, LarderError, Malformed, UnsupportedMediaType
from app.http.body import StrictRequest
from app.http.principals import caller, is_anonymous
from app.http.problems import KINDS, REFUSAL, AnyRequest, headers_of
from app.observe.trace import span
from app.schemas.lmcache.objects import (
    ChecksumPost,
    Json,
    LmcacheClearPost,
    ObjectsDelete,
    ObjectsDeleted,
    ObjectsListed,
    PrefetchPost,
    QuotaGot,
    QuotaRemoved,
    QuotaSet,
    QuotasListed,
    Tier,
)
from app.services.base.fields import field_error
from app.services.lmcache.objects import LmcacheObjects, LmcacheUnsupported
from app.services.lmcache.quotas import LmcacheQuotas
from app.services.lmcache.status import SPOKEN, LmcacheStatus
from app.services.views.health import HealthChecks

T = TypeVar("T")
_READS = {"role": "viewer"}
_READS_OWN = {"role": "viewer", "scoped": True}
_WRITES_OWN = {"role": "operator", "scoped": True}


# ---- quotas


@put("/quota/{cache_salt:str}", opt=_WRITES_OWN)
async def put_quota(
    request: StrictRequest, lmcache_quotas: NamedDependency[LmcacheQuotas], cache_salt: FromPath[str]
) -> QuotaSet:
    with span("lmcache.quotas.put"):
        return await lmcache_quotas.put(cache_salt, await _json(request), caller())


@get("/quota/{cache_salt:str}", opt=_READS_OWN)
async def get_quota(lmcache_quotas: NamedDependency[LmcacheQuotas], cache_salt: FromPath[str]) -> QuotaGot:
    return await lmcache_quotas.get(cache_salt, caller())


@delete("/quota/{cache_salt:str}", opt=_WRITES_OWN, status_code=200)
async def delete_quota(lmcache_quotas: NamedDependency[LmcacheQuotas], cache_salt: FromPath[str]) -> QuotaRemoved:
    with span("lmcache.quotas.delete"):
        return await lmcache_quotas.delete(cache_salt, caller())


@get("/quota", opt=_READS_OWN)
async def list_quotas(lmcache_quotas: NamedDependency[LmcacheQuotas]) -> QuotasListed:
    return await lmcache_quotas.list(caller())


# ---- the cache


@get("/cache/objects", opt=_READS_OWN)
async def list_objects(
    lmcache: NamedDependency[LmcacheObjects],
    tier: FromQuery[Tier] = "l2",
    model_name: FromQuery[str | None] = None,
    page_size: Annotated[int, QueryParameter(ge=1, le=5000)] = 500,
    page_token: FromQuery[str | None] = None,
) -> ObjectsListed:
    with span("lmcache.objects.list"):
        return await lmcache.list(tier, model_name, page_size, page_token or "", caller())


@delete("/cache/objects", opt=_WRITES_OWN, status_code=200)
async def delete_objects(request: StrictRequest, lmcache: NamedDependency[LmcacheObjects]) -> ObjectsDeleted:
    with span("lmcache.objects.delete"):
        return await lmcache.delete(await _body(request, ObjectsDelete), caller())


@post("/cache/clear", opt={"role": "operator"}, status_code=200)
async def clear(request: StrictRequest, lmcache: NamedDependency[LmcacheObjects]) -> Json:
    with span("lmcache.clear"):
        return await lmcache.clear(await _body(request, LmcacheClearPost, b"{}"), caller())


@post("/cache/prefetches", opt=_WRITES_OWN, status_code=202)
async def prefetch(request: StrictRequest, lmcache: NamedDependency[LmcacheObjects]) -> Json:
    with span("lmcache.prefetch"):
        return await lmcache.prefetch(await _body(request, PrefetchPost), caller())


@post("/cache/checksums", opt={"role": "operator"}, status_code=200)
async def checksums(request: StrictRequest, lmcache: NamedDependency[LmcacheObjects]) -> Json:
    with span("lmcache.checksums"):
        return await lmcache.checksums(await _body(request, ChecksumPost), caller())


@get("/cache/prefetches/{request_id:str}", opt=_READS_OWN)
async def prefetched(lmcache: NamedDependency[LmcacheObjects], request_id: FromPath[str]) -> Json:
    return lmcache.prefetched(request_id)


# ---- status


@get("/healthcheck", opt={**_READS_OWN, "opened_by": "anonymous_health"})
async def healthcheck(
    lmcache_status: NamedDependency[LmcacheStatus], health: NamedDependency[HealthChecks]
) -> Response[Json]:
    await health.ping(anonymous=is_anonymous())
    if reason := lmcache_status.unhealthy():
        return Response({"status": "unhealthy", "reason": reason}, status_code=503)
    return Response({"status": "healthy"}, status_code=200)


def _answering(path: str, opt: dict[str, Any], answer: Callable[[LmcacheStatus], Json | str]) -> HTTPRouteHandler:
    """Return a route that answers with JSON, also a text."""

    async def handler(lmcache_status: NamedDependency[LmcacheStatus]) -> Response[bytes]:
        return Response(msgspec.json.encode(answer(lmcache_status)), media_type="application/json")

    return get(path, opt=opt)(handler)


_STATUS = (
    _answering("/periodic-threads-health", _READS, LmcacheStatus.threads),
    _answering("/status", _READS, LmcacheStatus.status),
    _answering("/config", _READS, LmcacheStatus.config),
    _answering("/config/adapters", _READS_OWN, lambda _: {"adapters": []}),
    _answering("/version", _READS_OWN, lambda status: status.version),
    _answering("/lmc_version", _READS_OWN, lambda _: SPOKEN),
    _answering("/commit_id", _READS_OWN, lambda status: status.commit),
)


# ---- bodies and errors


async def _json(request: StrictRequest, empty: bytes = b"") -> Any:
    return await _body(request, Any, empty)


async def _body(request: StrictRequest, kind: type[T], empty: bytes = b"") -> T:
    """Return the body, decoded as JSON even without a Content-Type. Raises Invalid, Malformed, UnsupportedMediaType."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in ("", "application/json"):
        raise UnsupportedMediaType(f"expected content-type application/json, got {media_type[:80]!r}")
    try:
        value: T = await request.decoded(await request.body() or empty, kind, check=False)
    except msgspec.ValidationError as error:
        fault = field_error(str(error), kind)
        raise Invalid.about([fault]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Malformed("invalid JSON body") from None
    return value


def _on_larder_error(request: AnyRequest, error: LarderError) -> Response[Json]:
    request.scope["state"][REFUSAL] = error
    status = 501 if isinstance(error, LmcacheUnsupported) else KINDS[error.code].status
    if request.url.path.startswith("/quota") and isinstance(error, Invalid):
        status = 400
    headers = headers_of(error, status)
    return Response({"error": error.message, "detail": error.message}, status_code=status, headers=headers)


def _on_http_error(request: AnyRequest, error: HTTPException) -> Response[Json]:
    """Answer an error of Litestar, such as an invalid query parameter."""
    status, text = error.status_code, error.detail
    if isinstance(error, ValidationException):
        status = 422
        if isinstance(error.extra, list) and error.extra:
            text = "; ".join(f"{item.get('key', '')}: {item.get('message', '')}" for item in error.extra)
    return Response({"error": text, "detail": text}, status_code=status, headers=error.headers)


router = Router(
    "/",
    route_handlers=[
        put_quota,
        get_quota,
        delete_quota,
        list_quotas,
        list_objects,
        delete_objects,
        clear,
        prefetch,
        prefetched,
        checksums,
        healthcheck,
        *_STATUS,
    ],
    include_in_schema=False,
    exception_handlers={LarderError: _on_larder_error, HTTPException: _on_http_error},
)
