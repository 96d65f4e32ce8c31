"""/api/v1/findings"""

import time
from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.middleware.turns import in_turn
from app.http.operation import operation
from app.http.parameters import OfTenant, at_seconds, in_query
from app.http.principals import caller
from app.schemas.views.findings import FindingList
from app.services.views.evidence import LOOK_BACK_S
from app.services.views.findings import Findings


@operation(get, "/", "invalid", role="viewer", scoped=True, middleware=[in_turn])
async def list_findings(
    findings: NamedDependency[Findings],
    tenant: OfTenant = None,
    node: Annotated[str | None, in_query("Only what concerns this node, or the fleet.", max_length=128)] = None,
    since: Annotated[
        float | None, at_seconds("Earliest events and changes to look at, in Unix seconds. Defaults to an hour ago.")
    ] = None,
) -> FindingList:
    """List what is wrong, or was, with the change that most likely caused it: what explains most comes first.

    With `tenant` or `node`, findings about the fleet are listed too."""
    return await findings.page(tenant, node, time.time() - LOOK_BACK_S if since is None else since, caller())


router = Router("/findings", route_handlers=[list_findings], tags=["findings"])
