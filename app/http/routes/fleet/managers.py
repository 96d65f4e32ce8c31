"""/api/v1/managers"""

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.operation import operation
from app.schemas.fleet.managers import ManagerList
from app.services.fleet.managers import Managers


@operation(get, "/", role="viewer")
async def list_managers(managers: NamedDependency[Managers]) -> ManagerList:
    """List the managers that share the database, and the one that pushes to nodes."""
    return await managers.page()


router = Router("/managers", route_handlers=[list_managers], tags=["managers"])
