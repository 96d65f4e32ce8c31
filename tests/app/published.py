"""The description of the API as it was published. To build it again takes seconds of CPU time in each process.

`tests/app/cli/test_up.py` compares it with the one that the code makes now.
"""

import json
from typing import Any

from app.http.examples import EXAMPLES
from tests.golden_file import FOLDER

RECORDS = {"quotas": "QuotaPut", "policies": "PolicyPut", "pins": "PinPut", "rates": "RatePut",
           "tokenizers": "TokenizerPut", "ceilings": "CeilingPut", "tiers": "TierPut"}  # fmt: skip
"""Kinds of records, and the names of their bodies."""


def description() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return dict(json.loads((FOLDER / "openapi.json").read_text(encoding="utf-8")))


def operations(described: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the method, the path and the description of each operation, with the problems that operations share."""
    shared = described["components"]["responses"]
    return [
        (method, path, {**operation, "responses": responses})
        for path, item in described["paths"].items()
        for method, operation in item.items()
        for responses in [
            {
                status: shared[response["$ref"].rpartition("/")[2]] if "$ref" in response else response
                for status, response in operation["responses"].items()
            }
        ]
    ]


def body_of(operation: dict[str, Any]) -> tuple[str, str]:
    """Return the content type and the name of the body of an operation; empty if it has none."""
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        return kind, content["schema"]["$ref"].rpartition("/")[2]
    return "", ""


def example_of(operation: dict[str, Any]) -> Any:
    """Return the body that the description shows."""
    return EXAMPLES[body_of(operation)[1]]
