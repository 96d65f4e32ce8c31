"""Whatever the description allows is accepted, and what it does not allow is refused; each answer is one that the
description has.

Requests are made from the OpenAPI document, the same ones in every run, and half of them name what there is. Those that
the description allows are sent to a plane in this process; in a full run, others too, to a real `larder up`, by callers
of every kind. Schemathesis is used as a library: its plugin would cost every run of the tests a second.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import load_all_checks
from schemathesis.core.parameters import ParameterLocation
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
from tests.app.plane import Plane
from tests.app.published import description, example_of
from tests.e2e.larder import keys, running, store
from tests.sizes import size

pytestmark = pytest.mark.schemathesis
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
ALLOWED = size(60, 2)
"""Requests for each operation that the description allows."""
SEED = 41
"""Of the requests. Hypothesis otherwise derives them from the source of this module."""


@dataclass(frozen=True)
class Beyond:
    """A rule that JSON Schema has no keyword for. The description of the field says it."""

    reason: str
    field: str
    """Pattern of the last part of the path."""
    message: str
    """Pattern of its beginning."""
    operation: str = ""
    """Pattern of operations that have the rule; all by default."""

    def has(self, operation: str, path: str, message: str) -> bool:
        """Return whether this fault is of the rule."""
        path = re.sub(r"\bparameters\..*", "parameters", path)
        field = re.sub(r"\[[^\]]*\]$", "", path).rpartition(".")[2] or path
        matches = re.fullmatch(self.field, field) and re.match(self.message, message)
        return bool(matches and re.search(self.operation, operation))


SIZES = r"\w+_bytes|max_bytes_in_flight"
BEYOND_JSON_SCHEMA = (
    Beyond("3.0 is an integer there", ".*", ".*got a number that is not whole"),
    Beyond("a text has no bounds", SIZES, r"expected (a size between 0 and 1 EiB|at least 1 byte|\d+ \w+ to \d)"),
    Beyond(
        "two fields are not compared",
        "floor_bytes|pin_budget_bytes|low_watermark",
        "expected at most (limit_bytes|floor_bytes|high_watermark),",
    ),
    Beyond(
        "parameters do not depend on each other, nor on the time",
        "name|step_s|prefix|from",
        "expected (a series that is kept for|a multiple of 300 for|at most one of 'key'|a time before 'to')",
        "^(getSeries|listBlocks|getUsage|listAnnotations)$",
    ),
    Beyond("a body does not depend on the name in the path", "selector|priority", "expected (at least one|null|0):? "),
    Beyond("generators do not model what members of a list exclude", "no_bound", r"\w+ has a bound"),
    Beyond("a patch depends on the record", ".*", "expected|a permanent pin|.* has a bound", "^patch"),
    Beyond("what there is", "node|nodes|text|messages|prefix", "there is no (node|tokenizer)|no hot prefix"),
    Beyond("what there is", "cursor", "expected next_cursor of a page of this list"),
    Beyond("what time it is", "expires_at|startsAt|endsAt", "expected a moment (in the future|between)"),
    Beyond("normal forms of Unicode", "tenant", r"expected composed characters \(NFC\)"),
    Beyond("two fields are not compared", "tokens", "expected at least one full chunk of "),
    Beyond("the tokenizer counts", "text|messages", "expected at least one full chunk of "),
    Beyond("two fields are not compared", "source", "expected another tier than .*, the target", "^moveBlocks$"),
    Beyond("members of a list are not compared by name", r"\w+", "the .* is declared twice, ", "^applyDocument$"),
    Beyond("a grammar of its own", "tokenizer|chat_template|document|parameters|type", ""),
)
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

    url: str
    tokens: dict[str, str]
    """From the least role to the admin."""
    names: dict[str, str]
    """Of what there is, by path parameter."""
    http: requests.Session

    def seed(self, name: str) -> None:
        """Make what was deleted again, before the route of this name is tried."""
        for path, body in RECORDS.items():
            url, headers = f"{self.url}/api/v1/{path}", {**bearer(ADMIN), "If-Match": "*"}
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
        names = dict.fromkeys(("name", "ident", "token_id", "session"), "e")
        names |= {"tenant": "acme", "node": node, "number": "1", "key": chain[0].hex()}
        yield Served(larder.url, tokens, names, http)


TRIED = [
    pytest.param(name, mode, id=f"{name}-{mode.value}")
    for name in sorted(set(OPERATIONS) - ENDLESS)
    for mode in AS_ADMIN
    if mode is GenerationMode.POSITIVE
    or (name not in ENDS_THE_SERVER and has_anything(OPERATIONS[name].definition.raw))
]


def made(name: str, mode: GenerationMode, most: int) -> Any:
    """Decorate a function that takes a case of this operation: it runs with as many as `most`."""

    def decorate(function: Any) -> Any:
        run = settings(
            max_examples=most,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(given(case=OPERATIONS[name].as_strategy(generation_mode=mode))(function))
        return seed(SEED)(run)

    return decorate


def refusals(served: Served, name: str) -> list[str]:
    """Return what the server refuses of an operation although the description allows it."""
    served.seed(name)
    found: dict[str, str] = {}
    count = 0

    @made(name, GenerationMode.POSITIVE, ALLOWED)
    def send(case: schemathesis.Case) -> None:
        nonlocal count
        count += 1
        if count % 2 and name not in STAYS:
            name_what_there_is(case, OPERATIONS[name].path, served.names)
        if name in ENDS_THE_SERVER:
            case.body = {**(case.body if isinstance(case.body, dict) else {}), "dry_run": True}
        do_not_wait(case, name)
        answer = case.call(base_url=served.url, session=served.http, headers=bearer(ADMIN), timeout=60)
        served.http.cookies.clear()
        if answer.status_code in (400, 415, 422):
            faults = answer.json().get("errors") or [{"path": "", "message": answer.json()["detail"]}]
            for each in faults:
                text = f"{each['path']}: {each['message']}"
                if not any(rule.has(name, each["path"], each["message"]) for rule in BEYOND_JSON_SCHEMA):
                    found.setdefault(text, f"{name}: {answer.status_code} {text}")
        elif answer.status_code == 428 and OPERATIONS[name].method != "put":
            found.setdefault("428", f"{name}: {answer.text}")

    send()
    return list(found.values())


@pytest.mark.anyio
async def test_what_the_description_allows_is_accepted(guarded: Plane) -> None:
    names = dict.fromkeys(("name", "ident", "token_id", "session"), "e")
    names |= {"tenant": "acme", "node": "e", "number": "1", "key": "0" * 64, "client": "7"}
    with requests.Session() as http:
        http.trust_env = False
        served = Served(str(guarded.http.base_url).rstrip("/"), {}, names, http)
        found = []
        for name in sorted(set(OPERATIONS) - ENDLESS):
            found += await asyncio.to_thread(refusals, served, name)
    assert not found, "\n".join(found)


@pytest.mark.full
@pytest.mark.parametrize(("name", "mode"), TRIED)
def test_every_answer_is_one_that_is_described(served: Served, name: str, mode: GenerationMode) -> None:
    operation = OPERATIONS[name]
    served.seed(name)
    count = 0

    @made(name, mode, AS_ADMIN[mode])
    def ask(case: schemathesis.Case) -> None:
        nonlocal count
        count += 1
        in_path = case.meta.components.get(ParameterLocation.PATH)
        if count % 2 and name not in STAYS and (in_path is None or in_path.mode is GenerationMode.POSITIVE):
            name_what_there_is(case, operation.path, served.names)
        if count % 4 == 1 and mode is GenerationMode.POSITIVE and "requestBody" in operation.definition.raw:
            case.body = example(operation.definition.raw, served.tokens)
        if name in ENDS_THE_SERVER:
            case.body = {**(case.body if isinstance(case.body, dict) else {}), "dry_run": True}
        do_not_wait(case, name)
        for who, token in served.tokens.items():
            if who == "admin" or count <= AS_OTHERS:
                answer = case.call(base_url=served.url, session=served.http, headers=bearer(token), timeout=60)
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
