"""Names of tenants: engines may send any salt, and people write down only names that can be seen."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from dataplane.base.visible import cell, plain
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.callers import ADMIN, bearer, guarding
from tests.app.fake_node import FakeNode
from tests.app.plane import PIN, Plane
from tests.app.problems import accepted

pytestmark = pytest.mark.anyio
UNSEEN = {
    "  ": "only whitespace",
    "acme\u202e": "RIGHT-TO-LEFT OVERRIDE",
    "ac\u200bme": "ZERO WIDTH SPACE",
    "ac\u00a0me": "NO-BREAK SPACE",
    "\u2066acme": "LEFT-TO-RIGHT ISOLATE",
    "a\U000e0041b": "TAG LATIN CAPITAL LETTER A",
    "acme\ufe0f": "VARIATION SELECTOR-16",
    "ac\u034fme": "COMBINING GRAPHEME JOINER",
    "\u115f": "HANGUL CHOSEONG FILLER",
    "\u3164": "HANGUL FILLER",
    "acme\uffa0": "HALFWIDTH HANGUL FILLER",
    "\u2800": "BRAILLE PATTERN BLANK",
    "acme\u180b": "MONGOLIAN FREE VARIATION SELECTOR ONE",
    "acme\U000e0100": "VARIATION SELECTOR-17",
    "ac\u17b4me": "KHMER VOWEL INHERENT AQ",
    " acme": "no leading or trailing blank",
    "acme ": "no leading or trailing blank",
    "cafe\u0301": "composed characters (NFC)",
}


@pytest.mark.parametrize("name", UNSEEN)
async def test_no_record_is_made_for_an_invisible_name(shared_guarded: Plane, name: str) -> None:
    at = quote(name, safe="")
    document = {"apiVersion": "larder/v1", "quotas": {name: {"limit_bytes": 1}}}
    requests: list[tuple[str, str, Any, str]] = [
        ("PUT", f"/api/v1/quotas/{at}", {"limit_bytes": 1}, "tenant"),
        ("PUT", "/api/v1/pins/p", {**PIN, "tenant": name}, "tenant"),
        ("PUT", f"/api/v1/ceilings/{at}", {"max_weight": 2}, "tenant"),
        ("POST", "/api/v1/tokens", {"name": "t", "tenants": ["acme", name]}, "tenants[1]"),
        ("POST", "/api/v1/apply", {"document": document}, ""),
    ]
    for method, path, body, field in requests:
        answer = await shared_guarded.http.request(method, path, json=body, headers=bearer(ADMIN))
        problem = answer.json()
        assert answer.status_code == 422, (path, problem)
        assert UNSEEN[name] in problem["detail"]
        assert problem["errors"][0]["path"] == field or not field
    for kind in ("quotas", "pins", "ceilings", "tokens"):
        assert (await shared_guarded.get(f"/api/v1/{kind}"))["total"] == 0


async def test_clients_of_such_a_salt_are_shown_and_can_be_invalidated(socket_dir: Path, new_node: FakeNode) -> None:
    new_node.stats = msgspec.structs.replace(new_node.stats, tenants=[TenantStats("a\u202eb", bytes=7)])
    async with guarding(socket_dir) as plane:
        await plane.until(lambda: any(stats.tenants for stats in plane.app.parts.fleet.stats()))
        at = quote("a\u202eb", safe="")
        assert (await plane.get(f"/api/v1/tenants/{at}"))["bytes"] == 7
        adopted = await plane.http.post(f"/api/v1/tenants/{at}/adopt", json={}, headers=bearer(ADMIN))
        assert adopted.status_code == 422
        body = {"tenant": "a\u202eb", "dry_run": True}
        accepted(await plane.http.post("/api/v1/actions/invalidate", json=body, headers=bearer(ADMIN)), 200)


@pytest.mark.parametrize("name", [".", ".."])
async def test_no_record_is_made_for_a_name_that_no_url_has(shared_guarded: Plane, name: str) -> None:
    document = {"apiVersion": "larder/v1", "quotas": {name: {"limit_bytes": 1}}}
    requests: list[tuple[str, str, Any]] = [
        ("PUT", "/api/v1/pins/p", {**PIN, "tenant": name}),
        ("POST", "/api/v1/tokens", {"name": "t", "tenants": [name]}),
        ("POST", "/api/v1/apply", {"document": document}),
    ]
    for method, path, body in requests:
        answer = await shared_guarded.http.request(method, path, json=body)
        assert (answer.status_code, "cannot be used in a URL" in answer.json()["detail"]) == (422, True)


def test_invisible_characters_are_shown_as_escapes() -> None:
    assert plain("acme\ufe0f") == "acme\\ufe0f"
    assert plain("\u3164\u2800") == "\\u3164\\u2800"
    assert (cell(" acme"), cell("acme\u115f "), cell("acme")) == ("' acme'", "'acme\\u115f '", "acme")
    assert plain("a b é 鍵 🙂") == "a b é 鍵 🙂"


@pytest.mark.parametrize("name", ["a b", "ключ", "鍵", "naïve", "team.a-1_x", "🙂"])
async def test_names_of_every_script_are_names(name: str, guarded: Plane) -> None:
    answer = await guarded.http.put(f"/api/v1/quotas/{quote(name)}", json={"limit_bytes": 1})
    assert (answer.status_code, answer.json()["tenant"]) == (201, name)
