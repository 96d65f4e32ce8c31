"""/api/v1/replicas"""

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.problems import declared
from app.schemas.replicas import ReplicaList
from app.services.replicas import Replicas


@get(
    "/",
    operation_id="listReplicas",
    summary="Management planes that share the database, and which of them pushes to nodes",
    opt={"role": "viewer"},
    responses=declared(),
)
async def list_replicas(replicas: NamedDependency[Replicas]) -> ReplicaList:
    return await replicas.page()


router = Router("/replicas", route_handlers=[list_replicas], tags=["replicas"])
