"""The routes of a type of records, made from its row: list, get, put, patch and delete."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Annotated, Any

import msgspec
from litestar import Response, Router, delete, get, patch, put
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, JSONBody

from app.http.body import MERGE_PATCH
from app.http.operation import operation
from app.http.parameters import (
    Cursor,
    DryRun,
    Limit,
    NewTenantName,
    RecordName,
    TenantName,
    Wait,
    sort_by,
    wait_seconds,
)
from app.http.preconditions import PRECONDITIONS, IfMatch, IfNoneMatch, expected, with_etag
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.base.listing import PageRequest
from app.services.records.record_types import PushedType
from app.services.records.records import RecordService, RecordServices

_NULL = "(JSON merge patch: null resets a field to its default)"


@dataclass(frozen=True, kw_only=True)
class RecordRoutes:
    """The routes of a type of records."""

    service: type[RecordService[Any, Any, Any]]
    plural: str
    """Last segment of the path."""
    about: Mapping[str, str]
    """Summaries of the operations, by method; those of `get` and `patch` follow from the type if they are missing."""
    tag: str = ""
    """Tag of the operations, if it is not the plural."""
    role: str = "operator"
    """Role that changes need."""
    scoped_reads: bool = False
    """Whether callers that are limited to tenants may read."""
    scoped_writes: bool = False
    filters: Mapping[str, Any] = field(default_factory=dict)
    """Declarations of the filters of the list, which are columns."""
    new_name: Any = None
    """Declaration of the name in the path of a PUT, if it is not that of all types."""
    refusals: Sequence[str] = ()
    """Codes of problems of a PUT and a PATCH, beside those of all types."""
    put_refusals: Sequence[str] = ()
    limit: int = 1000
    """Default number of items of a list."""
    deletion: type[msgspec.Struct] | None = None
    """Answer to a DELETE, if there is one."""
    kept: type[msgspec.Struct] | None = None
    """Fields of a PUT that a PATCH does not change."""
    max_body_bytes: int | None = None


def with_type(generic: Any, kind: type[msgspec.Struct]) -> Any:
    return generic[kind]


def record_router(routes: RecordRoutes, *own_handlers: HTTPRouteHandler) -> Router:
    """Return the router of a type of records, with `own_handlers` in addition."""
    kind, service = routes.service.kind, routes.service
    noun, is_tenant = kind.noun, kind.key == "tenant"
    name = (TenantName if is_tenant else RecordName, Parameter.empty)
    new_name = (routes.new_name or (NewTenantName if is_tenant else RecordName), Parameter.empty)
    path = f"/{{{kind.key}:str}}"
    changes = {"if_match": (IfMatch, None)}
    wait = {"wait": (Wait, "")} if isinstance(kind, PushedType) else {}
    body: Any = {} if routes.max_body_bytes is None else {"request_max_body_size": routes.max_body_bytes}
    answer = with_type(Response, kind.answer)
    article = "a tenant's" if is_tenant else "a"
    about = {"get": f"Get a {noun}.", "patch": f"Change some fields of {article} {noun} {_NULL}.", **routes.about}

    async def list_records(records: RecordServices, limit: int, cursor: str, sort: str, **filters: Any) -> Any:
        return await records.of(service).page(PageRequest(limit, cursor, sort), filters, caller())

    async def get_record(records: RecordServices, **parameters: Any) -> Any:
        return with_etag(await records.of(service).get(parameters[kind.key], caller()))

    async def put_record(records: RecordServices, **parameters: Any) -> Any:
        state = expected(parameters["if_match"], parameters["if_none_match"])
        arguments = (
            parameters[kind.key],
            parameters["data"],
            caller(),
            state,
            wait_seconds(parameters.get("wait", "")),
        )
        with span(f"{routes.plural}.put"):
            record, created = await records.of(service).put(*arguments, dry_run=parameters["dry_run"])
        return with_etag(record, created=created)

    async def patch_record(records: RecordServices, **parameters: Any) -> Any:
        state = expected(parameters["if_match"])
        arguments = (
            parameters[kind.key],
            parameters["data"],
            caller(),
            state,
            wait_seconds(parameters.get("wait", "")),
        )
        with span(f"{routes.plural}.patch"):
            return with_etag(await records.of(service).patch(*arguments, dry_run=parameters["dry_run"]))

    async def delete_record(records: RecordServices, **parameters: Any) -> Any:
        arguments = (
            parameters[kind.key],
            caller(),
            expected(parameters["if_match"]),
            wait_seconds(parameters.get("wait", "")),
        )
        with span(f"{routes.plural}.delete"):
            return await records.of(service).delete(*arguments)

    writes: Any = {"role": routes.role, "scoped": routes.scoped_writes}
    reads: Any = {"role": "viewer", "scoped": routes.scoped_reads}
    listed: dict[str, tuple[Any, Any]] = {name: (declaration, None) for name, declaration in routes.filters.items()}
    listed["sort"] = (Annotated[str, sort_by(kind.sortable)], "")
    listed |= {"limit": (Limit, routes.limit), "cursor": (Cursor, "")}
    patched = (Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)], Parameter.empty)
    put_data = (with_type(JSONBody, kind.put), Parameter.empty)
    made_by_put = {
        "data": put_data,
        **changes,
        "if_none_match": (IfNoneMatch, None),
        **wait,
        "dry_run": (DryRun, False),
    }
    made_by_patch = {"data": patched, **changes, **wait, "dry_run": (DryRun, False)}
    opt = None if routes.kept is None else {"kept": routes.kept}
    deleted: Any = {} if routes.deletion is None else {"status_code": 200}

    def declared(
        handler: Callable[..., Any], method: str, result: Any, parameters: Mapping[str, tuple[Any, Any]]
    ) -> Any:
        """Give a handler the name, the summary and the parameters that Litestar reads."""
        handler.__name__ = f"{method}_{routes.plural if method == 'list' else noun}"
        handler.__doc__ = about[method]
        all_parameters = {"records": (NamedDependency[RecordServices], Parameter.empty), **parameters}
        handler.__annotations__ = {name: hint for name, (hint, _) in all_parameters.items()} | {"return": result}
        handler.__signature__ = Signature(  # type: ignore[attr-defined]
            [
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
                for name, (hint, default) in all_parameters.items()
            ],
            return_annotation=result,
        )
        return handler

    codes = (*PRECONDITIONS, *routes.refusals, "conflict")
    handlers = [
        operation(get, "/", "invalid", **reads)(declared(list_records, "list", kind.listing, listed)),
        operation(get, path, "not-found", "invalid", **reads)(declared(get_record, "get", answer, {kind.key: name})),
        operation(put, path, *codes, *routes.put_refusals, **writes, **body)(
            declared(put_record, "put", answer, {kind.key: new_name, **made_by_put})
        ),
        operation(patch, path, "not-found", *codes, **writes, **body, opt=opt)(
            declared(patch_record, "patch", answer, {kind.key: name, **made_by_patch})
        ),
        operation(delete, path, "not-found", *PRECONDITIONS, **writes, **deleted)(
            declared(delete_record, "delete", routes.deletion, {kind.key: name, **changes, **wait})
        ),
    ]
    return Router(f"/{routes.plural}", route_handlers=[*handlers, *own_handlers], tags=[routes.tag or routes.plural])
