"""Write into the dashboard's fixtures what the management plane finds in them: `make generated`.

The other parts of the fixtures are made by `web/scripts/fixtures.mjs`.
"""

import json
import re
from typing import Any

import msgspec

from app.ingest.refusal_runs import Refusal
from app.schemas.views.findings import Finding
from app.schemas.views.overview import Overview
from app.services.base.principals import Principal
from app.services.views.diagnosis import FleetState, findings, visible
from tests.web.player import FIXTURES

_WRITTEN = re.compile(r'^    "findings": \[(\n.*?\n    )?\]', re.MULTILINE | re.DOTALL)
REFUSED_S = 60.0
"""Age up to which refusals last."""


def found_in(played: dict[str, Any]) -> list[Finding]:
    """Return what is wrong in a fixture. Its refusals that last are those among its recent events."""
    overview = msgspec.convert(played["overview"], Overview)
    refusals = [
        Refusal(event.node, event.fields["tenant"], event.at, {event.fields["reason"]: event.fields["blocks"]})
        for event in overview.recent
        if event.name == "blocks.refused" and event.at > overview.at - REFUSED_S
    ]
    tenants = played["session"]["tenants"]
    found = findings(FleetState(overview, overview.recent[::-1], refusals=refusals))
    return visible(found, Principal(salts=None if tenants is None else frozenset(tenants)))


def main() -> None:
    for path in FIXTURES.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        rows = [json.dumps(row, ensure_ascii=False) for row in msgspec.to_builtins(found_in(json.loads(text)))]
        listed = ",\n      ".join(rows)
        whole = f'    "findings": [\n      {listed}\n    ]' if rows else '    "findings": []'
        written = _WRITTEN.search(text)
        assert written is not None, f"{path}: expected findings"
        path.write_text(text[: written.start()] + whole + text[written.end() :], encoding="utf-8")


if __name__ == "__main__":
    main()
