"""/api/v1/audit"""

from typing import Annotated, Any, Literal

from litestar import Request, Router, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.response import Stream

from app.http.lines import answers_lines, as_lines
from app.http.operation import operation
from app.http.parameters import Cursor, Limit, at_seconds, in_query
from app.schemas.access.audit import AuditEntry, AuditFilters, AuditList, AuditVerified
from app.schemas.base.listing import PageRequest
from app.services.access.audit import Audit

_Text = Annotated[str | None, in_query("Only entries with this value.", max_length=256)]


@operation(get, "/", "invalid", role="admin")
async def list_audit(
    audit: NamedDependency[Audit],
    actor: _Text = None,
    action: _Text = None,
    kind: _Text = None,
    name: _Text = None,
    decision: Annotated[
        Literal["allowed", "denied"] | None, QueryParameter(description="Only allowed actions, or only denied ones.")
    ] = None,
    since: Annotated[float | None, at_seconds("Earliest time, in Unix seconds.")] = None,
    until: Annotated[float | None, at_seconds("Latest time, in Unix seconds.")] = None,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> AuditList:
    """List audit entries, newest first: changes, actions and denied requests."""
    filters = AuditFilters(actor, action, kind, name, decision, since, until)
    return await audit.page(PageRequest(limit, cursor), filters)


@operation(get, "/export", role="admin", **answers_lines(AuditEntry, "One entry per line."))
async def export_audit(request: Request[Any, Any, Any], audit: NamedDependency[Audit]) -> Stream:
    """Export the audit log as JSON lines, oldest first."""
    return as_lines(request, audit.export())


@operation(get, "/verify", "invalid", role="admin")
async def verify_audit(
    audit: NamedDependency[Audit],
    expect: Annotated[
        str, QueryParameter(pattern="^([0-9a-f]{64}|)$", description="Hash that some entry must have.")
    ] = "",
) -> AuditVerified:
    """Verify that no audit entry was changed, removed, moved or added."""
    return await audit.verify(expect)


router = Router("/audit", route_handlers=[list_audit, export_audit, verify_audit], tags=["audit"])
