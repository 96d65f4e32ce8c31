"""Whatever the description allows, and much that it does not, is answered as the description says.

Requests are made from the OpenAPI document and sent to a real server, the same ones in every run. Schemathesis is used
as a library: its plugin would cost every run of the tests a second.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.openapi import document
from tests.app.apart import serving_apart

pytestmark = [pytest.mark.slow, pytest.mark.schemathesis, pytest.mark.timeout(180)]
TOKEN = "a-token-of-an-admin-that-only-this-test-knows"
EXAMPLES = {GenerationMode.POSITIVE: 12, GenerationMode.NEGATIVE: 10}
ENDLESS = {"streamEvents"}
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

load_all_checks()
SCHEMA = schemathesis.openapi.from_dict(json.loads(document()))
OPERATIONS = {found.ok().definition.raw["operationId"]: found.ok() for found in SCHEMA.get_all_operations()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = Path(tmp_path_factory.mktemp("s"))
    with serving_apart(folder, admin_token=TOKEN, auth="required", push_timeout_s=0.2) as url:
        yield url


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


@pytest.mark.parametrize("mode", list(EXAMPLES), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - ENDLESS))
def test_every_answer_is_one_that_is_described(
    server: str, session: requests.Session, name: str, mode: GenerationMode
) -> None:
    operation = OPERATIONS[name]

    @settings(
        max_examples=EXAMPLES[mode],
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.query, dict):
            case.query.pop("wait", None)
            if name == "getSnapshot":
                case.query["wait"] = "0s"
        response = case.call(
            base_url=server, session=session, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20
        )
        assert response.status_code != 500, response.text
        case.validate_response(response, checks=CHECKS)

    ask()
