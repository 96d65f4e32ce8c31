"""/api/v1/managers"""

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.problems import declared
from app.schemas.fleet.managers import ManagerList
from app.services.fleet.managers import Managers


@get(
    "/",
    operation_id="listManagers",
    summary="List the managers that share the database, and the one that pushes to nodes",
    opt={"role": "viewer"},
    responses=declared(),
)
async def list_managers(managers: NamedDependency[Managers]) -> ManagerList:
    return await managers.page()


router = Router("/managers", route_handlers=[list_managers], tags=["managers"])
