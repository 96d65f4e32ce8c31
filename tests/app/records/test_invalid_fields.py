"""What a PUT of a record is refused for, by the paths of its fields."""

import time
from typing import Any

import pytest

from app.texts import jobs
from tests.app.plane import PIN, Plane
from tests.app.problems import fault_paths
from tests.app.tokenizer_files import PUT

pytestmark = pytest.mark.anyio
LATER = time.time() + 86_400
Case = tuple[dict[str, Any], list[str]]
CASES: dict[str, tuple[dict[str, Any], list[Case]]] = {
    "quotas/acme": ({}, [
        ({"limit_bytes": 10, "floor_bytes": 11}, ["floor_bytes"]),
        ({"floor_bytes": 10, "pin_budget_bytes": 11}, ["pin_budget_bytes"]),
        ({"limit_bytes": 10, "pin_budget_bytes": 11}, ["pin_budget_bytes"]),
        *(({"weight": weight}, ["weight"]) for weight in (0, -1, 0.009, 1000.5, 1e300, "1")),
        ({"store_rate_bytes": 0}, ["store_rate_bytes"]),
        ({"floor_bytes": None}, ["floor_bytes"]),
        ({"floor_bytes": "much"}, ["floor_bytes"]),
        ({"on_exceed": "evict_others"}, ["on_exceed"]),
        ({"mode": "dry"}, ["mode"]),
        ({"note": "no share at all"}, ["limit_bytes"]),
        ({"limit_bytes": 5, "floor_bytes": 6, "weight": 0}, ["floor_bytes", "weight"]),
        ({"tiers": {"disk": {"floor_bytes": 2, "limit_bytes": 1}}}, ["tiers.disk.floor_bytes"]),
        ({"tiers": {"disk": {"limit_bytes": "many"}}}, ["tiers.disk.limit_bytes"]),
        ({"tiers": {"disk": {"limit_bytes": -1}, "b": {"floor_bytes": "x"}}},
         ["tiers.b.floor_bytes", "tiers.disk.limit_bytes"]),
        ({"tiers": {"a\n": {}}}, ["tiers"]),
        ({"tiers": {"n" * 65: {}}}, ["tiers"]),
        ({"tiers": {str(number): {} for number in range(9)}}, ["tiers"]),
        ({"tiers": {"disk": {"weight": 1}}}, ["tiers[...].weight"]),
    ]),
    "pins/p": (PIN, [
        ({"refresh_on_hit": True}, ["refresh_on_hit"]),
        ({"refresh_on_hit": True, "expires_at": LATER}, ["refresh_on_hit"]),
        ({"strength": "permanent", "ttl_s": 60}, ["strength"]),
        ({"strength": "permanent", "expires_at": LATER}, ["strength"]),
        ({"strength": "permanent", "refresh_on_hit": True}, ["refresh_on_hit", "strength"]),
        ({"refresh_on_hit": "yes", "ttl_s": 5}, ["refresh_on_hit"]),
        ({"model": None}, ["model"]),
        ({"tier": "disk"}, ["tier"]),
    ]),
    "policies/default": ({}, [
        ({"algorithm": "belady"}, ["algorithm"]),
        ({"admission": "yes"}, ["admission"]),
        ({"admission_idle_s": 0.5}, ["admission_idle_s"]),
        ({"admission_idle_s": 86_401}, ["admission_idle_s"]),
        ({"high_watermark": 0.4, "low_watermark": 0.4}, ["high_watermark", "low_watermark"]),
        ({"high_watermark": 1.01}, ["high_watermark"]),
        ({"high_watermark": 0.9, "low_watermark": 0.95}, ["low_watermark"]),
        ({"high_watermark": 0.9}, ["low_watermark"]),
        ({"low_watermark": 0.1}, ["low_watermark"]),
        ({"note": "x" * 1025, "admission": True}, ["note"]),
        ({"watermark": 1}, ["watermark"]),
        ({}, ["algorithm"]),
        ({"note": "scans"}, ["algorithm"]),
        ({"algorithm": "lru", "selector": {"zone": "a"}}, ["selector"]),
        ({"algorithm": "lru", "priority": 1}, ["priority"]),
    ]),
    "policies/night": ({"algorithm": "lru", "selector": {"zone": "a"}}, [
        ({"selector": None}, ["selector"]),
        ({"selector": {}}, ["selector"]),
        ({"selector": {"-zone": "a"}}, ["selector"]),
        ({"priority": -1}, ["priority"]),
        ({"priority": 1001}, ["priority"]),
    ]),
    "tiers/nvme": ({"type": "disk", "budget_bytes": "2GiB", "parameters": {"directories": ["/a"]}}, [
        *(({"type": kind}, ["type"]) for kind in ("dsk", 7, None, "")),
        *(({"budget_bytes": size}, ["budget_bytes"]) for size in (0, -1, "much", (1 << 60) + 1, None)),
        ({"parameters": {}}, ["parameters.directories"]),
        ({"parameters": []}, ["parameters"]),
        ({"parameters": {"directories": []}}, ["parameters.directories"]),
        ({"parameters": {"directories": ["relative"]}}, ["parameters.directories[0]"]),
        ({"parameters": {"directories": ["/a\x00b"]}}, ["parameters.directories[0]"]),
        ({"parameters": {"directories": ["/a"], "threads": 0}}, ["parameters.threads"]),
        ({"parameters": {"directories": ["/a"], "threads": 1 << 200}}, ["parameters.threads"]),
        ({"parameters": {"directories": ["/a"], "compress": "zstd"}}, ["parameters.compress"]),
        ({"parameters": {"directories": ["/" + "a" * 17_000]}}, ["parameters"]),
        ({"parameters": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": 1}}}}}}}}}, ["parameters.a.b.c.d.e.f.g.h"]),
        *(({"order": order}, ["order"]) for order in (-1, 1001, 1.5)),
        ({"spill": "always"}, ["spill"]),
        *(({"load_deadline_s": seconds}, ["load_deadline_s"]) for seconds in (0, 301, "soon")),
        *(({"max_bytes_in_flight": size}, ["max_bytes_in_flight"]) for size in ("1KiB", "65GiB")),
        ({"note": "x" * 1025}, ["note"]),
        ({"managed_by": "a b"}, ["managed_by"]),
        ({"selector": {"-zone": "a"}}, ["selector"]),
        *(({"compress": codec}, ["compress"]) for codec in ("fp8", "zstd", "lz4")),
    ]),
    "tiers/empty": ({}, [({}, ["type", "budget_bytes"])]),
    "ceilings/acme": ({}, [
        ({"max_limit_bytes": -1}, ["max_limit_bytes"]),
        ({"max_weight": 0}, ["max_weight"]),
        ({"max_ttl_s": 0}, ["max_ttl_s"]),
        ({"strengths": ["hard"]}, ["strengths[0]"]),
        ({"max_weight": 2, "no_bound": ["max_weight"]}, ["no_bound"]),
        ({"no_bound": ["strengths"]}, ["no_bound[0]"]),
    ]),
    "rates/llama": ({"model": "m", "prefill_tokens_per_s": 1}, [
        *(({"prefill_tokens_per_s": rate}, ["prefill_tokens_per_s"]) for rate in (0, 1e10)),
        *(({"space": space}, ["space"]) for space in ("X", "A" * 32)),
        ({"model": ""}, ["model"]),
        ({"prefill_tokens_per_s": -1, "note": "\0"}, ["note", "prefill_tokens_per_s"]),
        ({"more": 1}, ["more"]),
    ]),
    "rates/empty": ({}, [
        ({}, ["model", "prefill_tokens_per_s"]),
        ({"model": "m"}, ["prefill_tokens_per_s"]),
        ({"model": "", "note": "\0"}, ["model", "note", "prefill_tokens_per_s"]),
    ]),
    "tokenizers/empty": ({}, [(fields, ["model", "tokenizer"]) for fields in ({}, {"model": ""})]),
    "tokenizers/words": (PUT, [
        ({"tokenizer": "{}"}, ["tokenizer"]),
        ({"tokenizer": ""}, ["tokenizer"]),
        ({"tokenizer": {"version": "1.0", "model": {"type": "BPE"}}}, ["tokenizer"]),
        ({"tokenizer": "[" * 100_000}, ["tokenizer"]),
        ({"tokenizer": 5}, ["tokenizer"]),
        ({"tokenizer": None}, ["tokenizer"]),
        ({"model": ""}, ["model"]),
        ({"model": "a\nb"}, ["model"]),
        ({"chat_template": "{% if %}"}, ["chat_template"]),
        ({"chat_template": "{{ " + "(" * 5000}, ["chat_template"]),
        ({"chat_template": "\0"}, ["chat_template"]),
        ({"chat_template": "x" * (jobs.MAX_TEMPLATE_CHARACTERS + 1)}, ["chat_template"]),
        ({"special_tokens": {"messages": "x"}}, ["special_tokens"]),
        ({"special_tokens": {"a b": "x"}}, ["special_tokens"]),
        ({"special_tokens": {"bos_token": "x" * 2000}}, ["special_tokens.bos_token"]),
        ({"special_tokens": {"bos_token": 1}}, ["special_tokens[...]"]),
        ({"note": "x" * 1025}, ["note"]),
        ({"colour": 1}, ["colour"]),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("path", CASES)
async def test_invalid_fields_are_refused_by_path(shared_plane: Plane, path: str) -> None:
    whole, cases = CASES[path]
    for fields, paths in cases:
        response = await shared_plane.http.put(f"/api/v1/{path}", json={**whole, **fields})
        assert response.status_code == 422, (fields, response.text)
        assert [error["path"] for error in response.json()["errors"]] == paths, fields
    kind, _, name = path.partition("/")
    if kind in ("quotas", "pins", "policies", "tiers"):  # which documents and dry runs may have
        fields, paths = cases[0]
        records = {kind: {name: {**whole, **fields}}}
        document = {"apiVersion": "larder/v1", **records}
        found = fault_paths(await shared_plane.http.post("/api/v1/apply", json={"document": document}))
        assert found == [f"{kind}.{name}.{field}" for field in paths]
        assert (await shared_plane.http.post("/api/v1/actions/dry-run", json=records)).status_code == 422
    assert (await shared_plane.get(f"/api/v1/{path.partition('/')[0]}"))["total"] == 0
