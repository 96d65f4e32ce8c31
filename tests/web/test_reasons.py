"""The dashboard explains the reasons that nodes report, and no others."""

import re
from pathlib import Path

import pytest

from app.services.records.tenant_totals import OTHER
from dataplane.protocol.codes import Code
from dataplane.protocol.misses import MISS_REASONS

MODEL = Path("web/src/model")
REASONS = {"records/misses.ts": {*MISS_REASONS, OTHER}, "overview/refusals.ts": {code.name.lower() for code in Code}}


@pytest.mark.parametrize("name", REASONS)
def test_the_dashboard_explains_reasons_that_exist(name: str) -> None:
    table = (MODEL / name).read_text().partition("const MEANING: Record<string, string> = {")[2].partition("};")[0]
    explained = set(re.findall(r"^  (\w+):", table, re.MULTILINE))
    assert explained
    assert explained <= REASONS[name]
    if name == "records/misses.ts":
        assert explained == REASONS[name]
