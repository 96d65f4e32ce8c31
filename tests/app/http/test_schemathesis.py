"""Whatever the description allows, and much that it does not, is answered as the description says.

Requests are made from the OpenAPI document and sent to a real `larder up` by callers of every kind, the same ones in
every run. Half of them name what there is. Schemathesis is used as a library: its plugin would cost every run of the
tests a second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.http.examples import EXAMPLES
from app.services.base.principals import ROLES
from tests.app.callers import ADMIN, bearer
from tests.app.published import description, example_of
from tests.e2e.larder import Larder, keys, running, store
from tests.sizes import size

pytestmark = [pytest.mark.full, pytest.mark.schemathesis]
AS_ADMIN = {GenerationMode.POSITIVE: size(12, 6), GenerationMode.NEGATIVE: size(10, 5)}
AS_OTHERS = size(3, 1)
"""This many are sent by all other callers as well, before the admin sends them."""
ENDLESS = {"streamEvents"}
ENDS_THE_SERVER = {"restart"}
"""Only checks with `dry_run`: the server of this module would run its command again."""
STAYS = {"resizeNode"}
"""Not tried on a node that there is: a pool may grow to all of the machine's memory."""
RECORDS = {
    "quotas/acme": "QuotaPut",
    "policies/e": "PolicyPut",
    "pins/e": "PinPut",
    "rates/e": "RatePut",
    "tokenizers/e": "TokenizerPut",
    "ceilings/acme": "CeilingPut",
}
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
]

load_all_checks()
SCHEMA = schemathesis.openapi.from_dict(description())
OPERATIONS = {found.ok().definition.raw["operationId"]: found.ok() for found in SCHEMA.get_all_operations()}


def has_anything(raw: dict[str, Any]) -> bool:
    """Whether there is anything in a request that could be wrong."""
    return bool(raw.get("parameters") or "requestBody" in raw)


@dataclass
class Served:
    """A server with something of each kind, and its callers."""

    larder: Larder
    tokens: dict[str, str]
    """From the least role to the admin."""
    names: dict[str, str]
    """Of what there is, by path parameter."""
    http: requests.Session

    def seed(self, name: str) -> None:
        """Make what was deleted again, before the route of this name is tried."""
        for path, body in RECORDS.items():
            url, headers = f"{self.larder.url}/api/v1/{path}", {**bearer(ADMIN), "If-Match": "*"}
            if (name, path) == ("adoptTenant", "quotas/acme"):
                self.http.delete(url, headers=headers, timeout=60)
            elif self.http.get(url, headers=headers, timeout=60).status_code == 404:
                del headers["If-Match"]
                answer = self.http.put(url, json=EXAMPLES[body], headers=headers, timeout=60)
                assert answer.status_code == 201, answer.text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = Path(tmp_path_factory.mktemp("s"))
    guarded = {"LARDER_APP__AUTH": "required", "LARDER_APP__ADMIN_TOKEN": ADMIN, "LARDER_POOL_BYTES": "1GiB"}
    with running(folder, **guarded) as larder, larder.engine() as engine, requests.Session() as http:
        http.trust_env = False
        chain = keys("e", 4)
        store(engine, chain, tenant="acme")
        node = http.get(f"{larder.url}/api/v1/nodes", headers=bearer(ADMIN), timeout=60).json()["items"][0]["name"]

        def made(name: str, role: str, tenants: list[str] | None = None) -> str:
            body = {"name": name, "role": role, "tenants": tenants}
            answer = http.post(f"{larder.url}/api/v1/tokens", json=body, headers=bearer(ADMIN), timeout=60)
            token: str = answer.json()["token"]
            return token

        tokens = {"limited": made("limited", "operator", ["acme"])}
        for role in ROLES[:-1]:
            tokens[role] = made(role, role)
        tokens["admin"] = ADMIN
        made("e", "viewer")
        names = dict.fromkeys(("name", "ident", "token_id"), "e")
        names |= {"tenant": "acme", "node": node, "number": "1", "key": chain[0].hex()}
        yield Served(larder, tokens, names, http)


TRIED = [
    pytest.param(name, mode, id=f"{name}-{mode.value}")
    for name in sorted(set(OPERATIONS) - ENDLESS)
    for mode in AS_ADMIN
    if mode is GenerationMode.POSITIVE
    or (name not in ENDS_THE_SERVER and has_anything(OPERATIONS[name].definition.raw))
]


@pytest.mark.parametrize(("name", "mode"), TRIED)
def test_every_answer_is_one_that_is_described(served: Served, name: str, mode: GenerationMode) -> None:
    operation = OPERATIONS[name]
    served.seed(name)
    count = 0

    @settings(
        max_examples=AS_ADMIN[mode],
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        nonlocal count
        count += 1
        if count % 2 and name not in STAYS:
            name_what_there_is(case, operation.path, served.names)
        if count % 4 == 1 and mode is GenerationMode.POSITIVE and "requestBody" in operation.definition.raw:
            case.body = example(operation.definition.raw, served.tokens)
        if name in ENDS_THE_SERVER:
            case.body = {**(case.body if isinstance(case.body, dict) else {}), "dry_run": True}
        do_not_wait(case, name)
        for who, token in served.tokens.items():
            if who == "admin" or count <= AS_OTHERS:
                answer = case.call(base_url=served.larder.url, session=served.http, headers=bearer(token), timeout=60)
                served.http.cookies.clear()
                assert answer.status_code < 500 or (name, answer.status_code) == ("getReady", 503), answer.text
                case.validate_response(answer, checks=CHECKS)

    ask()


def name_what_there_is(case: Any, path: str, names: dict[str, str]) -> None:
    """Also in whatever state it is."""
    in_path = dict(case.path_parameters or {})
    for parameter in in_path:
        known = "node" if path.startswith("/api/v1/nodes/") else parameter
        in_path[parameter] = names[known]
    case.path_parameters = in_path
    if "If-Match" in case.headers:
        case.headers.pop("If-None-Match", None)
        case.headers["If-Match"] = "*"


def example(raw: dict[str, Any], tokens: dict[str, str]) -> Any:
    """The body that the description shows."""
    if raw["operationId"] == "logIn":
        return {"token": tokens["viewer"]}
    return example_of(raw)


def do_not_wait(case: Any, name: str) -> None:
    if isinstance(case.query, dict):
        case.query.pop("wait", None)
        if name == "getSnapshot":
            case.query["wait"] = "0s"
