"""/api/v1/policies"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, put
from litestar.di import NamedDependency
from litestar.params import Body, JSONBody, QueryParameter

from app.http.body import MERGE_PATCH
from app.http.operation import operation
from app.http.parameters import Cursor, Limit, OfOwner, RecordName, Wait, sort_by, wait_seconds
from app.http.preconditions import PRECONDITIONS, WRITES, IfMatch, IfNoneMatch, expected, with_etag
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.base.listing import PageRequest
from app.schemas.records.policies import PolicyAnswer, PolicyFilters, PolicyList, PolicyPut
from app.services.records.policies import Policies
from app.services.records.policy_intent import POLICIES
from dataplane.protocol.control.records import Algorithm

_Sort = Annotated[str, sort_by(POLICIES.sortable)]


@operation(get, "/", "invalid", role="viewer")
async def list_policies(
    policies: NamedDependency[Policies],
    algorithm: Annotated[Algorithm | None, QueryParameter(description="Only policies with this algorithm.")] = None,
    managed_by: OfOwner = None,
    sort: _Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> PolicyList:
    """List policies, and those that nodes have in force."""
    return await policies.page(PageRequest(limit, cursor, sort), PolicyFilters(algorithm, managed_by))


@operation(get, "/{name:str}", "not-found", "invalid", role="viewer")
async def get_policy(policies: NamedDependency[Policies], name: RecordName) -> Response[PolicyAnswer]:
    """Get a policy."""
    return with_etag(await policies.get(name))


@operation(put, "/{name:str}", *WRITES, role="operator")
async def put_policy(
    policies: NamedDependency[Policies],
    name: RecordName,
    data: JSONBody[PolicyPut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    wait: Wait = "",
) -> Response[PolicyAnswer]:
    """Set a policy; running nodes switch to it and keep the cache."""
    state = expected(if_match, if_none_match)
    with span("policies.put"):
        answer, created = await policies.put(name, data, caller(), state, wait_seconds(wait))
    return with_etag(answer, created=created)


@operation(patch, "/{name:str}", "not-found", *WRITES, role="operator")
async def patch_policy(
    policies: NamedDependency[Policies],
    name: RecordName,
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
    if_match: IfMatch = None,
    wait: Wait = "",
) -> Response[PolicyAnswer]:
    """Change some fields of a policy (JSON merge patch: null resets a field to its default)."""
    with span("policies.patch"):
        answer = await policies.patch(name, data, caller(), expected(if_match), wait_seconds(wait))
    return with_etag(answer)


@operation(delete, "/{name:str}", "not-found", *PRECONDITIONS, role="operator")
async def delete_policy(
    policies: NamedDependency[Policies], name: RecordName, if_match: IfMatch = None, wait: Wait = ""
) -> None:
    """Delete a policy; its nodes apply another one that matches, or their defaults."""
    with span("policies.delete"):
        await policies.delete(name, caller(), expected(if_match), wait_seconds(wait))


router = Router(
    "/policies", route_handlers=[list_policies, get_policy, put_policy, patch_policy, delete_policy], tags=["policies"]
)
