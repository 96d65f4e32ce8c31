"""Nobody overwrites what they have not seen: ETag, If-Match, If-None-Match; and JSON merge patch, cursors and sorts."""

from typing import Any

import httpx
import pytest

from tests.app.plane import Plane
from tests.app.problems import fault_paths

pytestmark = pytest.mark.anyio
Q = "/api/v1/quotas/acme"


async def send(plane: Plane, method: str, body: Any = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await plane.http.request(method, Q, json=body, headers=named, auth=lambda request: request)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([("If-Match", '"999"'), ("If-Match", "ETAG")], 200),
        ([("If-Match", '"999"'), ("If-Match", '"998"')], 412),
        ([("If-Match", "*"), ("If-Match", "*")], 400),
        ([("If-Match", "ETAG"), ("If-None-Match", "*"), ("If-None-Match", '"9"')], 400),
        ([("If-Match", "*"), ("Content-Type", "text/plain"), ("Content-Type", "application/json")], 415),
        ([("If-Match", "*"), ("Authorization", "Bearer a"), ("Authorization", "Bearer b")], 401),
    ],
)
async def test_lines_of_a_header_are_one_list(plane: Plane, lines: list[tuple[str, str]], status: int) -> None:
    etag = (await send(plane, "PUT", {"limit_bytes": 5})).headers["etag"]
    named = [(name, value.replace("ETAG", etag)) for name, value in lines]
    if "Content-Type" not in dict(lines):
        named.append(("Content-Type", "application/json"))
    answer = await plane.http.request(
        "PUT", Q, content=b'{"limit_bytes": 6}', headers=named, auth=lambda request: request
    )
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("value", ["7", "'7'", '"7', "", '"a" "b"', ",".join(['"1"'] * 40)])
async def test_an_invalid_etag_is_refused(shared_plane: Plane, value: str) -> None:
    assert fault_paths(await send(shared_plane, "PUT", {"limit_bytes": 5}, if_match=value), 400)[0] == "If-Match"


async def test_pages_follow_each_other_in_any_order_while_records_change(plane: Plane) -> None:
    for number in range(7):
        await plane.put_quota(f"t{number}", 100 - number // 2, wait="")
    for sort, expected in (
        ("", "0123456"),
        ("-tenant", "6543210"),
        ("limit_bytes", "6452301"),
        ("-limit_bytes", "1032546"),
    ):
        seen, cursor = "", ""
        while True:
            page = await plane.get(f"/api/v1/quotas?limit=2&sort={sort}&cursor={cursor}")
            assert page["total"] == 7
            seen += "".join(item["tenant"][1:] for item in page["items"])
            cursor = page["next_cursor"]
            if not cursor:
                break
        assert seen == expected
    first = await plane.get("/api/v1/quotas?limit=3")
    assert (await plane.http.delete("/api/v1/quotas/t1")).is_success
    after = await plane.get(f"/api/v1/quotas?limit=3&cursor={first['next_cursor']}")
    assert [item["tenant"] for item in after["items"]] == ["t3", "t4", "t5"]
    other = await plane.http.get(f"/api/v1/quotas?sort=weight&cursor={first['next_cursor']}")
    assert (other.status_code, other.json()["errors"][0]["path"]) == (422, "cursor")
