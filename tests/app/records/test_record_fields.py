"""The recipe 'add a field to a record' of CONTRIBUTING.md holds: a field that is declared is described, stored, shown,
exported, audited, patched, and an option of the command line."""

import json
from typing import Any, get_args, get_origin, get_type_hints

import click
import msgspec
import pytest

from app.cli.commands.records.nouns import ceilings, pins, policies, quotas, rates, tiers
from app.descriptions import descriptions
from app.http.examples import EXAMPLES
from app.schemas.records.ceilings import CeilingPut
from app.schemas.records.pins import STORED
from app.schemas.records.policies import PolicyPut
from app.schemas.records.prefill_rates import RatePut
from app.schemas.records.quotas import QuotaPut
from app.schemas.records.tiers import TierPut
from app.services.documents.resource_types import KINDS
from app.services.records.ceilings import CEILINGS
from app.services.records.prefill_rates import PREFILL_RATES
from app.services.records.record_types import PushedType, RecordType
from app.services.records.tokenizers import TOKENIZERS
from tests.app.plane import Plane
from tests.app.problems import accepted

pytestmark = pytest.mark.anyio
TYPES: list[RecordType[Any]] = [*KINDS.values(), CEILINGS, PREFILL_RATES, TOKENIZERS]
NO_OPTION = {"managed_by", "no_bound", "tiers"}
"""Fields that follow from other options, or that only documents set."""
REQUIRED = {"policies": {"selector"}, "tiers": {"type", "budget_bytes", "parameters"}}
"""Fields without a default: only the policy `default` has no selector, and a disk needs directories."""


def hints_of(put: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(put, include_extras=True)
    return {name: hints[name] for name in put.__struct_fields__}


def types_in(hint: Any) -> list[Any]:
    parts = get_args(hint)
    return [hint] if get_origin(hint) is None or not parts else [each for part in parts for each in types_in(part)]


def other_value(hint: Any) -> Any:
    """A value of a field that is not its default: an example of its declaration, or one by its type."""
    for note in getattr(hint, "__metadata__", ()):
        if note.examples:
            return note.examples[0]
    types = types_in(hint)
    choices = [each for each in types if isinstance(each, str)]
    if choices:
        return choices[-1]
    return True if bool in types else "text"


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.noun)
def test_every_field_is_described_and_has_a_column(kind: RecordType[Any]) -> None:
    for name, hint in hints_of(kind.put).items():
        of_type = any(note.description for note in getattr(hint, "__metadata__", ()))
        assert of_type or name in descriptions(kind.put), f"{name} has no description"
    columns = set(kind.row.__table__.columns.keys())
    assert {kind.key, *kind.written} <= columns
    not_audited = columns - {kind.key, *kind.written} - {"generation", "revision", "created_at", "updated_at"}
    assert not_audited <= {"owner", "file"}, "a column that no audit entry shows"


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (quotas, QuotaPut.__struct_fields__),
        (policies, PolicyPut.__struct_fields__),
        (pins, STORED),
        (ceilings, CeilingPut.__struct_fields__),
        (tiers, TierPut.__struct_fields__),
        (rates, RatePut.__struct_fields__),
    ],
)
def test_every_field_has_an_option(command: click.Group, fields: tuple[str, ...]) -> None:
    options = {parameter.name for parameter in command.commands["set"].params}
    assert set(fields) - options <= NO_OPTION


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_every_field_is_shown_exported_audited_and_patched(plane: Plane, kind: PushedType[Any]) -> None:
    name, hints = kind.name, hints_of(kind.put)
    fields = STORED if name == "pins" else kind.put.__struct_fields__
    body = {field: other_value(hints[field]) for field in fields} | {"selector": {"zone": "a"}}
    if name == "pins":
        body |= {field: EXAMPLES["PinPut"][field] for field in ("model", "tenant", "tokens", "chunk_tokens")}
    path = f"/api/v1/{name}/e"
    answer = accepted(await plane.http.put(path, json=body), 201)
    assert [field for field in fields if answer[field] in ("", None)] == []

    document = (await plane.get("/api/v1/export"))["document"]
    assert [field for field in fields if field not in document[name][0]] == []
    applied = await plane.http.post("/api/v1/apply", json={"document": document})
    assert applied.json()["unchanged"] == 1, applied.text
    snapshot = (await plane.get("/api/v1/snapshot"))[name]["items"][0]
    assert {field: snapshot[field] for field in fields} == {field: answer[field] for field in fields}

    for field in fields:
        state = {"If-Match": "*"}
        if field not in REQUIRED.get(name, ()):
            changed = await plane.http.patch(path, json={field: None}, headers=state)
            assert changed.status_code == 200, (field, changed.text)
            entry = (await plane.get(f"/api/v1/audit?kind={kind.noun}&limit=1"))["items"][0]
            assert entry["before"][field] == answer[field], field
            assert entry["after"][field] == changed.json()[field] != answer[field], field


PATHS = {"policy": "policies"}
REVISION = {"generation", "revision", "updated_at"}
CHANGES: dict[str, list[dict[str, Any]]] = {
    "quota": [{"selector": {"zone": "b"}}, {"limit_bytes": 5 << 30}, {"floor_bytes": 1}, {"weight": 3}],
    "pin": [
        {"selector": {"zone": "b"}},
        {"selector": {"zone": "b"}, "tokens": [1, 2, 3, 4, 5]},  # the same keys
        {"tokens": None, "keys": ["ab" * 32]},
        {"tokens": [1, 2, 3, 4, 5, 6, 7, 8]},
        {"expires_at": "2100-01-01T00:00:00Z"},
        {"ttl_s": 60, "refresh_on_hit": True},
        {"model": "other"},
        {"tenant": "other"},
    ],
    "policy": [
        {"selector": {"zone": "b"}},
        {"admission": False},
        {"priority": 5},
        {"high_watermark": 0.9, "low_watermark": 0.8},
    ],
    "tier": [
        {"selector": {"zone": "b"}},
        {"type": "s3", "parameters": other_value(hints_of(TierPut)["parameters"]), "compress": "zstd"},
        {"budget_bytes": 1 << 30},
    ],
    "ceiling": [
        *({name: 5} for name in CeilingPut.__struct_fields__ if name.startswith("max_")),
        {"strengths": ["soft"]},
        {"no_bound": ["max_pin_budget_bytes"]},
    ],
    "rate": [{"model": "other"}, {"space": "ab" * 16}, {"prefill_tokens_per_s": 5}],
    "tokenizer": [
        {"model": "other"},
        {"tokenizer": json.dumps(EXAMPLES["TokenizerPut"]["tokenizer"], indent=1)},
        {"special_tokens": {"bos_token": "a"}},
        {"add_special_tokens": False},
    ],
}
"""Changes of a body of `EXAMPLES`, besides those of single fields to `other_value`."""


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.noun)
async def test_a_put_that_changes_any_column_has_an_audit_entry(plane: Plane, kind: RecordType[Any]) -> None:
    """No column changes without an entry, and each one changes."""
    example = {name: value for name, value in EXAMPLES[kind.put.__name__].items() if name != "ttl_s"}
    single = [{name: other_value(hint)} for name, hint in hints_of(kind.put).items()]
    path, database = f"/api/v1/{PATHS.get(kind.noun, kind.noun + 's')}/e", plane.app.parts.database
    accepted(await plane.http.put(path, json=example), 201)
    columns, changed = set(kind.row.__table__.columns.keys()) - REVISION, set[str]()

    async def stored() -> tuple[dict[str, Any], str, int]:
        row = await database.row(kind.row, "e")
        values = {name: getattr(row, name) for name in columns - {"file"}}
        newest = (await plane.get(f"/api/v1/audit?kind={kind.noun}&limit=1"))["items"][0]
        return values, (await plane.get(path))["etag"], newest["id"]

    for change in [*single, *CHANGES[kind.noun]]:
        body = {name: value for name, value in {**example, **change}.items() if value is not None}
        before, etag, entry = await stored()
        if not (await plane.http.put(path, json=body, headers={"If-Match": "*"})).is_success:
            continue
        after, new_etag, new_entry = await stored()
        different = {name for name in before if before[name] != after[name]}
        assert (new_entry != entry, new_etag != etag) == (bool(different),) * 2, (change, different)
        changed |= different
    assert columns - changed == {kind.key, "created_at"} | ({"owner", "file"} & columns)
