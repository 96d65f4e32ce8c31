"""/api/v1/actions"""

from litestar import Router, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from app.http.callers import caller
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.actions import ActionAnswer, ScopePost
from app.services.actions import Actions

_PROBLEMS = declared("malformed", "invalid", "unsupported-media-type", "too-large", "node-unreachable")


@post(
    "/invalidate",
    operation_id="invalidate",
    summary="Make blocks unreadable at once, on every connected node; permanent pins keep theirs",
    status_code=200,
    opt={"body": ScopePost, "role": "operator"},
    responses=_PROBLEMS,
)
async def invalidate(actions: NamedDependency[Actions], data: JSONBody[ScopePost]) -> ActionAnswer:
    with span("actions.invalidate"):
        return await actions.sweep("invalidate", data, caller())


@post(
    "/demote",
    operation_id="demote",
    summary="Make blocks the first victims until they are used again, on every connected node",
    status_code=200,
    opt={"body": ScopePost, "role": "operator"},
    responses=_PROBLEMS,
)
async def demote(actions: NamedDependency[Actions], data: JSONBody[ScopePost]) -> ActionAnswer:
    with span("actions.demote"):
        return await actions.sweep("demote", data, caller())


router = Router("/actions", route_handlers=[invalidate, demote], tags=["actions"])
