"""/api/v1/policies"""

from litestar import Response, Router, delete, get, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody

from app.http.callers import caller
from app.http.parameters import Wait, wait_seconds
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.policies import PolicyAnswer, PolicyList, PolicyPut
from app.services.policies import Policies


@get(
    "/",
    operation_id="listPolicies",
    summary="The policy record, if there is one, and what nodes have in force",
    opt={"role": "viewer"},
    responses=declared(),
)
async def list_policies(policies: NamedDependency[Policies]) -> PolicyList:
    return await policies.page()


@get(
    "/{name:str}",
    operation_id="getPolicy",
    summary="The policy record named `default`",
    opt={"role": "viewer"},
    responses=declared("not-found", "invalid"),
)
async def get_policy(policies: NamedDependency[Policies], name: FromPath[str]) -> PolicyAnswer:
    return await policies.get(name)


@put(
    "/{name:str}",
    operation_id="putPolicy",
    summary="Set the policy; live, the cache is kept",
    opt={"body": PolicyPut, "role": "operator"},
    responses={
        201: ResponseSpec(PolicyAnswer, generate_examples=False, description="The record is new."),
        **declared("malformed", "invalid", "unsupported-media-type", "too-large"),
    },
)
async def put_policy(
    policies: NamedDependency[Policies], name: FromPath[str], data: JSONBody[PolicyPut], wait: Wait = ""
) -> Response[PolicyAnswer]:
    with span("policies.put"):
        answer, created = await policies.put(name, data, caller(), wait_seconds(wait))
    return Response(answer, status_code=201 if created else 200)


@delete(
    "/{name:str}",
    operation_id="deletePolicy",
    summary="Forget the policy; nodes go back to their defaults",
    opt={"role": "operator"},
    responses=declared("not-found", "invalid"),
)
async def delete_policy(policies: NamedDependency[Policies], name: FromPath[str], wait: Wait = "") -> None:
    with span("policies.delete"):
        await policies.delete(name, caller(), wait_seconds(wait))


router = Router(
    "/policies", route_handlers=[list_policies, get_policy, put_policy, delete_policy], tags=["policies"]
)
