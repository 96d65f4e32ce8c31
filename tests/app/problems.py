"""Answers of the HTTP API: one that accepts a request, and one that refuses it."""

from typing import Any

import httpx

from app.http.problems import KINDS


def accepted(response: httpx.Response, status: int | None = None) -> Any:
    """Return the document of an answer that accepts the request, with this status when one is named."""
    assert response.is_success if status is None else response.status_code == status, response.text
    return response.json()


def is_problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    kind = KINDS[body["type"].removeprefix("urn:larder:problem:")]
    assert (kind.status, kind.title) == (body["status"], body["title"]) == (status, body["title"])
    assert body["request_id"] == response.headers.get("x-request-id", body["request_id"])
    return body


def fault_paths(response: httpx.Response, status: int = 422) -> list[str]:
    """Return the paths of the fields that the answer refuses, in its order."""
    return [fault["path"] for fault in is_problem(response, status)["errors"]]
