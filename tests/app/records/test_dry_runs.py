"""Dry runs of single records: the answer is the record as it would be, and nothing is stored, audited or sent."""

from typing import Any

import pytest

from app.http.examples import EXAMPLES
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio

RECORDS = [
    ("ceilings/acme", "CeilingPut", {"max_weight": 7}),
    ("rates/llama", "RatePut", {"prefill_tokens_per_s": 15}),
    ("tokenizers/words", "TokenizerPut", {"note": "another"}),
]


async def sent(plane: Plane, method: str, path: str, body: dict[str, Any], etag: str = "") -> Any:
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    headers |= {"If-Match": etag} if etag else {}
    return await plane.http.request(method, f"/api/v1/{path}", json=body, headers=headers)


@pytest.mark.parametrize(("path", "example", "patch"), RECORDS)
async def test_a_dry_run_returns_the_record_and_stores_nothing(
    plane: Plane, path: str, example: str, patch: dict[str, Any]
) -> None:
    body = EXAMPLES[example]
    tried = await sent(plane, "PUT", f"{path}?dry_run=true", body)
    assert tried.status_code == 201, tried.text
    assert (await plane.http.get(f"/api/v1/{path}")).status_code == 404
    made = (await sent(plane, "PUT", path, body)).json()
    assert {name: made[name] for name in body if name in made} == {
        name: tried.json()[name] for name in body if name in made
    }
    changed = await sent(plane, "PATCH", f"{path}?dry_run=true", patch, made["etag"])
    assert changed.status_code == 200, changed.text
    assert patch.items() <= changed.json().items()
    assert (await plane.get(f"/api/v1/{path}")) == made
    stored = await sent(plane, "PATCH", path, patch, made["etag"])
    assert patch.items() <= stored.json().items()
    late = await sent(plane, "PATCH", f"{path}?dry_run=true", patch, made["etag"])
    assert late.status_code == 412, "it was changed meanwhile"


async def test_a_pin_is_tried_with_the_message_of_its_field(plane: Plane) -> None:
    pin = (await sent(plane, "PUT", "pins/p", {**EXAMPLES["PinPut"], "ttl_s": 60})).json()
    tried = await sent(plane, "PATCH", "pins/p?dry_run=true", {"strength": "soft", "ttl_s": 6000}, pin["etag"])
    assert tried.json()["strength"] == "soft"
    assert tried.json()["expires_at"] > pin["expires_at"] + 5000
    refused = await sent(plane, "PATCH", "pins/p?dry_run=true", {"strength": "permanent"}, pin["etag"])
    assert [error["path"] for error in refused.json()["errors"]] == ["strength"]
    again = await plane.get("/api/v1/pins/p")
    assert (again["strength"], again["etag"]) == (pin["strength"], pin["etag"])


async def test_a_patched_tokenizer_keeps_its_file(plane: Plane) -> None:
    made = (await sent(plane, "PUT", "tokenizers/words", EXAMPLES["TokenizerPut"])).json()
    noted = (await sent(plane, "PATCH", "tokenizers/words", {"note": "n"}, made["etag"])).json()
    assert (noted["digest"], noted["model"], noted["note"]) == (made["digest"], made["model"], "n")
    missing = await sent(plane, "PATCH", "tokenizers/none", {"note": "n"}, "*")
    assert missing.status_code == 404
