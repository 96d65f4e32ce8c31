"""/api/v1/audit"""

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.parameters import Limit, Offset
from app.http.problems import declared
from app.schemas.audit import AuditList
from app.services.audit import Audit


@get("/", operation_id="listAudit", summary="Who changed what, newest first", responses=declared("invalid"))
async def list_audit(audit: NamedDependency[Audit], limit: Limit = 100, offset: Offset = 0) -> AuditList:
    return await audit.page(limit, offset)


router = Router("/audit", route_handlers=[list_audit], tags=["audit"])
