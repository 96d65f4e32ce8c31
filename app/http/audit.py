"""/api/v1/audit"""

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.parameters import Cursor, Limit
from app.http.problems import declared
from app.schemas.audit import AuditList
from app.services.audit import Audit
from app.store.listing import Wanted


@get(
    "/",
    operation_id="listAudit",
    summary="Who did what, newest first",
    opt={"role": "admin"},
    responses=declared("invalid"),
)
async def list_audit(audit: NamedDependency[Audit], limit: Limit = 100, cursor: Cursor = "") -> AuditList:
    return await audit.page(Wanted(limit, cursor))


router = Router("/audit", route_handlers=[list_audit], tags=["audit"])
