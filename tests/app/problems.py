"""Responses that refuse a request."""

from typing import Any

import httpx

from app.http.problems import KINDS


def is_problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    kind = KINDS[body["type"].removeprefix("urn:larder:problem:")]
    assert (kind.status, kind.title) == (body["status"], body["title"]) == (status, body["title"])
    assert body["request_id"] == response.headers.get("x-request-id", body["request_id"])
    return body
