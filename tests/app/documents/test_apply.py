"""Records as code: documents are applied whole or not at all, to the records of one owner, and exported again."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import Forbidden, Invalid, StoreUnavailable, TooManyRequests
from app.ingest.fleet import Fleet
from app.push.desired import DesiredState
from app.schemas.documents.apply import ApplyAnswer, ApplyPut
from app.schemas.records.ceilings import CeilingPut
from app.services.base.changes import Changes
from app.services.base.preconditions import ANY
from app.services.base.principals import Principal
from app.services.documents.apply import Apply
from app.services.documents.document_text import DocumentSyntaxError, lines, read, write
from app.services.documents.export import Export
from app.services.documents.startup_document import StartupDocument, StartupDocumentError
from app.services.records.ceilings import Ceilings
from app.services.records.pin_quota import PinQuota
from app.services.records.progress import RecordProgress
from app.services.records.tokenizers import Tokenizers
from app.services.records.tokenizing import EncodeService
from app.store.access.audit import AuditRow
from app.store.base import migrate
from app.store.base.database import Database
from app.store.records import generations
from app.store.records.pins import PinBodyRow, PinRow
from app.store.records.policies import PolicyRow
from app.store.records.quotas import QuotaRow
from app.store.records.tiers import TierRow
from tests.app.event_bus import event_bus
from tests.app.plane import Plane, serving, settings_in
from tests.app.problems import accepted
from tests.app.published import description
from tests.app.tokenizer_files import words
from tests.app.up import Up, until
from tests.sizes import size

pytestmark = pytest.mark.anyio
KEY = "0123456789abcdef" * 4
BY = Principal(request_id="r-1", actor="ci")
FULL = """
apiVersion: larder/v1
managed_by: team-a
quotas:
  - {tenant: acme, limit_bytes: 4GiB, floor_bytes: 1MiB, note: no}
  - {tenant: _default, weight: 2, mode: observe, selector: {zone: eu}}
pins:
  sys: {model: m, tokens: [1, 2, 3, 4], chunk_tokens: 2, ttl_s: 60, refresh_on_hit: true}
  once: {model: m, tenant: acme, tokens: [1, 2, 3, 4], chunk_tokens: 2, ttl_s: 3600}
  fixed: {model: m, tenant: acme, keys: ["KEY"], expires_at: 2035-01-01T00:00:00Z, strength: soft}
policies:
  default: {algorithm: arc}
tiers:
  nvme: {type: disk, budget_bytes: 1GiB, parameters: {directories: [/mnt/nvme0]}, selector: {rack: none}}
""".replace("KEY", KEY)


class Store:
    """The services over a database, without HTTP and without nodes."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        fleet, bus = Fleet(), event_bus()
        changes = Changes(self.database, fleet, bus)
        self.bus = bus
        progress = RecordProgress(fleet, DesiredState(self.database))
        self.ceilings = Ceilings(self.database, changes, progress, fleet)
        tokenizers = Tokenizers(self.database, changes, progress, fleet, EncodeService())
        self.apply_service = Apply(self.database, changes, progress, fleet, tokenizers, PinQuota(max_pins=10_000))
        self.exports = Export(self.database)

    async def apply(self, document: Any, by: Principal = BY, **options: Any) -> ApplyAnswer:
        return await self.apply_service.apply(ApplyPut(document=document, **options), by)

    async def export(self, by: Principal = BY, owner: str | None = None) -> dict[str, Any]:
        return (await self.exports.export((), owner, by)).document

    async def empty(self) -> None:
        async with self.database.write() as session:
            for table in (QuotaRow, PinRow, PinBodyRow, PolicyRow, TierRow):
                await session.execute(sa.delete(table))

    async def state(self) -> tuple[Any, ...]:
        """Records, bodies, generations, audit: everything that a change could leave behind."""
        async with self.database.read() as session:
            heads = await generations.heads(session)
            audit = await session.scalar(sa.select(sa.func.count()).select_from(AuditRow))
            bodies = list(await session.scalars(sa.select(PinBodyRow.digest).order_by(PinBodyRow.digest)))
        return await self.export(), heads, audit, bodies


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = Store(url)
    await migrate.upgrade(store.database)
    try:
        yield store
    finally:
        await store.database.close()


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with opened(database_url) as found:
        yield found


def actions(answer: ApplyAnswer) -> dict[str, str]:
    return {f"{record.type}/{record.name}": record.action for record in answer.records}


# ---- what is applied


async def test_all_types_are_applied_in_one_transaction_and_again_change_nothing(store: Store) -> None:
    seen = await store.apply(FULL, dry_run=True)
    assert await store.state() == ({"apiVersion": "larder/v1", "quotas": [], "pins": [], "policies": [], "tiers": []},
                                   {"quotas": 0, "pins": 0, "policies": 0, "tiers": 0}, 0, [])  # fmt: skip
    done = await store.apply(FULL)
    assert (done.created, done.updated, done.deleted, done.unchanged) == (7, 0, 0, 0)
    assert [(r.type, r.name, r.action) for r in seen.records] == [(r.type, r.name, r.action) for r in done.records]
    assert done.generations == {"quotas": 1, "pins": 1, "policies": 1, "tiers": 1}
    state = await store.state()
    assert len(state[3]) == 3  # the same tokens of two tenants are different keys
    again = await store.apply(FULL)
    assert (again.created, again.updated, again.deleted, again.unchanged) == (0, 0, 0, 7)
    assert await store.state() == state
    async with store.database.read() as session:
        entries = (await session.scalars(sa.select(AuditRow).order_by(AuditRow.id))).all()
    assert {(e.request_id, e.actor, e.action) for e in entries} == {("r-1", "ci", "create")}
    assert len(entries) == 7


async def test_changes_are_audited_before_and_after(store: Store) -> None:
    await store.apply(FULL)
    changed = FULL.replace("limit_bytes: 4GiB", "limit_bytes: 5GiB").replace(
        "tokens: [1, 2, 3, 4], chunk_tokens: 2, ttl_s: 60", "tokens: [1, 2, 9, 9], chunk_tokens: 2, ttl_s: 60"
    )
    for dry_run in (True, False):
        answer = await store.apply(changed, dry_run=dry_run)
        updated = {record.name: record for record in answer.records if record.action == "update"}
        assert set(updated) == {"acme", "sys"}
        assert {name: (c.before, c.after) for name, c in updated["acme"].fields.items()} == {
            "limit_bytes": (4 << 30, 5 << 30)
        }
        assert set(updated["sys"].fields) == {"keys_digest"}
        assert answer.generations == ({"quotas": 1, "pins": 1, "policies": 1, "tiers": 1} if dry_run else
                                      {"quotas": 2, "pins": 2, "policies": 1, "tiers": 1})  # fmt: skip


async def test_texts_of_one_document_are_few_and_the_one_too_many_is_named(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.documents.apply.MAX_TEXTS", 2)
    body = {"model": "llama", "tokenizer": words()}
    assert (await plane.http.put("/api/v1/tokenizers/llama", json=body)).is_success
    pins = {f"p{at}": {"model": "llama", "text": "w1 w2", "chunk_tokens": 2} for at in range(3)}
    document = json.dumps({"apiVersion": "larder/v1", "pins": pins})
    answer = await plane.http.post("/api/v1/apply", json={"document": document, "dry_run": True})
    assert (answer.status_code, [e["path"] for e in answer.json()["errors"]]) == (422, ["pins.p2.text"])


async def test_a_pin_of_text_is_made_of_its_tokens_and_exported_with_its_keys(plane: Plane) -> None:
    body = {"model": "llama", "tokenizer": words()}
    assert (await plane.http.put("/api/v1/tokenizers/llama", json=body)).status_code == 201
    text = "apiVersion: larder/v1\npins:\n  p: {model: MODEL, text: w1 w2 w3 w4, chunk_tokens: 2}\n"
    known = {"document": text.replace("MODEL", "llama")}
    for action in ("create", "unchanged"):
        answer = await plane.http.post("/api/v1/apply", json=known)
        assert [record["action"] for record in answer.json()["records"]] == [action], answer.text
    pin = await plane.get("/api/v1/pins/p")
    assert (pin["origin"]["source"], pin["key_count"]) == ("text", 2)
    exported = (await plane.get("/api/v1/export"))["document"]
    assert len(exported["pins"][0]["keys"]) == 2
    api = description()
    schema = api["components"]["schemas"]["ExportAnswer"]["properties"]["document"]
    fits = jsonschema_rs.validator_for({**schema, "components": api["components"]})
    fits.validate(exported)
    assert not fits.is_valid({**exported, "pins": [{"colour": "red"}]})
    again = (await plane.http.post("/api/v1/apply", json={"document": exported})).json()
    assert again["unchanged"] == 1
    assert (await plane.get("/api/v1/pins/p"))["origin"] == pin["origin"]
    unknown = await plane.http.post("/api/v1/apply", json={"document": text.replace("MODEL", "other")})
    assert (unknown.status_code, [e["path"] for e in unknown.json()["errors"]]) == (422, ["pins.p.text"])


# ---- owners


async def test_prune_deletes_records_that_left_the_file_and_nothing_of_others(store: Store) -> None:
    await store.apply(FULL)
    await store.apply({"apiVersion": "larder/v1", "managed_by": "team-b", "quotas": {"b": {"weight": 2}}})
    await store.apply({"apiVersion": "larder/v1", "quotas": {"nobody": {"weight": 2}}})
    answer = await store.apply(
        {"apiVersion": "larder/v1", "managed_by": "team-a", "quotas": {"acme": {"limit_bytes": 5}}}, prune=True
    )
    assert (answer.created, answer.updated, answer.deleted) == (0, 1, 6)
    left = await store.export()
    assert [quota["tenant"] for quota in left["quotas"]] == ["acme", "b", "nobody"]
    assert (left["pins"], left["policies"]) == ([], [])
    assert (await store.state())[3] == []
    with pytest.raises(Invalid, match="only an owner's records are deleted"):
        await store.apply({"apiVersion": "larder/v1", "quotas": {}}, prune=True)


async def test_records_of_other_owners_are_conflicts_reported_together(plane: Plane) -> None:
    mine = {"apiVersion": "larder/v1", "managed_by": "team-a", "quotas": {"a": {"weight": 2}}}
    assert (await plane.http.post("/api/v1/apply", json={"document": mine})).status_code == 200
    await plane.put_quota("free")
    theirs = {
        "apiVersion": "larder/v1", "managed_by": "team-b",
        "quotas": {"a": {"weight": 3}, "free": {"weight": 3}, "new": {"weight": 3}},
    }  # fmt: skip
    refused = await plane.http.post("/api/v1/apply", json={"document": theirs})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:larder:problem:conflict")
    assert [(e["path"], e["message"]) for e in refused.json()["errors"]] == [
        ("quotas.a", "the quota 'a' is managed by 'team-a', not by 'team-b'"),
        ("quotas.free", "the quota 'free' is managed by hand (no owner), not by 'team-b'"),
    ]
    assert refused.json()["detail"].endswith(
        "not by 'team-b' (and 1 more); take_over (--take-over) makes them the document's"
    )
    assert (await plane.http.get("/api/v1/quotas/new")).status_code == 404
    taken = await plane.http.post("/api/v1/apply", json={"document": theirs, "take_over": True})
    assert {r["name"]: r["action"] for r in taken.json()["records"]} == {
        "a": "update", "free": "update", "new": "create",
    }  # fmt: skip
    assert (await plane.get("/api/v1/quotas/a"))["managed_by"] == "team-b"


async def test_a_caller_of_some_tenants_applies_their_records_alone(store: Store) -> None:
    await store.apply(FULL)
    limited = Principal(actor="t", role="operator", salts=frozenset({"acme"}))
    document: dict[str, Any] = {"apiVersion": "larder/v1", "managed_by": "team-a"}
    ours = {**document, "quotas": {"acme": {"limit_bytes": 7}}}
    with pytest.raises(Forbidden, match="not 'other'"):
        await store.apply({**ours, "pins": {"p": {"model": "m", "tenant": "other", "keys": [KEY]}}}, limited)
    with pytest.raises(Forbidden, match=r"policies\.default is about all of them"):
        await store.apply({**document, "policies": {"default": {"algorithm": "lru"}}}, limited)
    with pytest.raises(Forbidden, match="'sys' is taken"):
        await store.apply({**document, "pins": {"sys": {"model": "m", "tenant": "acme", "keys": [KEY]}}}, limited)
    with pytest.raises(Forbidden, match="has no ceiling"):
        await store.apply(ours, limited, dry_run=True)
    await store.ceilings.put("acme", CeilingPut(max_limit_bytes=6, strengths=["soft"]), BY, ANY)
    strong = {"p": {"model": "m", "tenant": "acme", "keys": [KEY]}}
    for dry_run in (True, False):
        with pytest.raises(Forbidden) as refused:
            await store.apply({**ours, "pins": strong}, limited, dry_run=dry_run)
        assert [error.path for error in refused.value.errors] == ["quotas.acme.limit_bytes", "pins.p.strength"]
    await store.ceilings.put("acme", CeilingPut(max_limit_bytes=7), BY, ANY)
    answer = await store.apply(ours, limited, prune=True)
    assert actions(answer) == {"quotas/acme": "update", "pins/fixed": "delete", "pins/once": "delete"}
    seen = await store.export(limited)
    assert ([q["tenant"] for q in seen["quotas"]], seen["pins"], seen["policies"]) == (["acme"], [], [])
    with pytest.raises(Forbidden, match="operator"):
        await store.apply(ours, Principal(actor="v", role="viewer"))
    assert (await store.apply(ours, Principal(actor="v", role="viewer"), dry_run=True)).unchanged == 1


# ---- what is refused


WRONG: list[tuple[str, list[str]]] = [
    ("quotas: {x: {floor_bytes: 5, limit_bytes: 4}}", ["quotas.x.floor_bytes"]),
    ("quotas: [{tenant: x, colour: 1, weight: heavy}, 7, {weight: 1}]",
     ["quotas[0].colour", "quotas[0].weight", "quotas[1]", "quotas[2].tenant"]),
    ("quotas: [{tenant: x/y, limit_bytes: many}]", ["quotas[0].tenant", "quotas[0].limit_bytes"]),
    ("quotas: [{tenant: x, weight: 1}, {tenant: x, weight: 2}]", ["quotas[1]"]),
    ("quotas: [{tenant: x, weight: 0}, {tenant: x, weight: 2}]", ["quotas[0].weight", "quotas[1]"]),
    ("quotas: {x: {weight: 1, managed_by: team-b}}", ["quotas.x.managed_by"]),
    ("pins: {p: {model: m, prefix: p-1}}", ["pins.p.prefix"]),
    ("pins: {'a b': {model: m, keys: [12]}, q: {model: m}}", ["pins.a b.keys[0]", "pins.a b.name", "pins.q.tokens"]),
    ("pins: 5", ["pins"]),
    ("policies: {other: {algorithm: best}}", ["policies.other.algorithm"]),
    ("apiversion: larder/v1", ["apiversion"]),
    ("quotas: *nothing", ["document"]),
    ("quotas: {x: {weight: 1}, x: {weight: 2}}", ["document"]),
]  # fmt: skip


async def test_a_caller_with_few_rights_cannot_delay_others_with_large_requests(store: Store) -> None:
    limited = Principal(actor="t", role="operator", salts=frozenset({"acme"}))
    for document in ("#" * (1 << 20) + "#", ["#" * (1 << 20), "#"], {"apiVersion": "x" * (1 << 20)}):
        with pytest.raises(Invalid, match=r"expected at most 1,048,576 characters of a token that is limited"):
            await store.apply(document, limited, dry_run=True)
    with pytest.raises(Invalid, match="expected at most 1,000 documents"):
        await store.apply("---\n" * 100_000, limited, dry_run=True)
    request = ApplyPut("#" * 1_000_000, dry_run=True)
    waiting = [asyncio.create_task(store.apply_service.apply(request, limited)) for _ in range(5)]
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in ended].count(TooManyRequests) == 2, "one has its turn and two wait for it"


async def test_a_fault_anywhere_leaves_nothing_changed(store: Store) -> None:
    await store.apply(FULL)
    before = await store.state()
    right = "apiVersion: larder/v1\nmanaged_by: team-a\n"
    for text, paths in WRONG:
        with pytest.raises(Invalid) as refused:
            await store.apply(right + text)
        assert sorted(error.path for error in refused.value.errors) == sorted(paths), text
        assert await store.state() == before, text


async def test_every_fault_has_its_line_and_its_document(store: Store) -> None:
    good = {"apiVersion": "larder/v1", "quotas": {"b": {"weight": 1}}}
    bad = "apiVersion: larder/v1\nquotas:\n\n  - tenant: a\n    weight: -1\n    note: x\n  - tenant: b\n    weight: 1\n"
    with pytest.raises(Invalid) as refused:
        await store.apply([good, bad])
    assert [(error.path, error.message) for error in refused.value.errors] == [
        ("document[1].quotas[0].weight", "expected 0.01 to 1000, got -1 (line 5)"),
        ("document[1].quotas[1]", "the quota 'b' is declared twice, also at document[0].quotas.b (line 7)"),
    ]
    with pytest.raises(Invalid) as refused:
        await store.apply("apiVersion: larder/v1\nquotas: [")
    assert refused.value.errors[0].message.startswith("line 3, column 1: ")
    empty: list[Any] = ["", "# only a comment", []]
    for nothing in empty:
        with pytest.raises(Invalid, match="got nothing"):
            await store.apply(nothing)


async def test_floors_are_checked_for_the_whole_outcome(plane: Plane) -> None:
    async def apply(**floors: str) -> httpx.Response:
        quotas = {tenant: {"floor_bytes": floor} for tenant, floor in floors.items()}
        document = {"apiVersion": "larder/v1", "managed_by": "t", "quotas": quotas}
        return await plane.http.post("/api/v1/apply", json={"document": document})

    assert (await apply(a="900MiB", b="100MiB")).status_code == 200  # of 1 GiB
    accepted(await apply(a="100MiB", b="900MiB"), 200)
    refused = await apply(a="200MiB", b="900MiB", c="1MiB")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:larder:problem:floors-exceed-capacity")
    assert [error["path"] for error in refused.json()["errors"]] == ["quotas.a.floor_bytes", "quotas.c.floor_bytes"]
    assert (await plane.get("/api/v1/quotas/a"))["floor_bytes"] == 100 << 20
    assert (await plane.http.get("/api/v1/quotas/c")).status_code == 404


async def test_changes_since_the_diff_are_not_overwritten(new_plane: Plane) -> None:
    document = {"apiVersion": "larder/v1", "quotas": {"a": {"weight": 2}}}
    seen = (await new_plane.http.post("/api/v1/apply", json={"document": document, "dry_run": True})).json()
    await new_plane.put_quota("b")
    request = {"document": document, "expect": seen["generations"]}
    late = await new_plane.http.post("/api/v1/apply", json=request)
    assert (late.status_code, late.json()["type"]) == (412, "urn:larder:problem:precondition-failed")
    assert late.json()["detail"] == "quotas were changed meanwhile: expected generation 0, and there is 1"
    assert (await new_plane.http.get("/api/v1/quotas/a")).status_code == 404


async def test_documents_may_be_larger_than_other_bodies_and_not_larger_than_their_limit(socket_dir: Path) -> None:
    small = settings_in(socket_dir, body_limit_bytes=1024, apply_limit_bytes=1 << 20)
    async with serving(small) as plane:
        for size, status in ((2000, 200), (2 << 20, 413)):
            text = "apiVersion: larder/v1\nquotas: {a: {weight: 2}}\n#" + "x" * size
            answer = await plane.http.post("/api/v1/apply", json={"document": text})
            assert answer.status_code == status, answer.text
        assert answer.json()["detail"] == "expected a body of at most 1 MiB"


async def test_a_change_of_very_many_records_is_one_event_of_each_type(store: Store) -> None:
    many = {"apiVersion": "larder/v1", "quotas": {f"t{number}": {"weight": 2} for number in range(1000)}}
    assert (await store.apply(many)).created == 1000
    published = [(event.name, event.fields) for event in store.bus.recent]
    assert published == [
        ("records.changed", {"type": "quotas", "generation": 1, "created": 1000, "changed": 0, "deleted": 0})
    ]
    assert (await store.state())[2] == 1000


# ---- ends of pins


async def test_a_pin_that_has_ended_is_neither_made_nor_a_fault(store: Store) -> None:
    document: dict[str, Any] = {
        "apiVersion": "larder/v1", "pins": {"p": {"model": "m", "keys": [KEY], "expires_at": 1_000_000_000}},
    }  # fmt: skip
    assert actions(await store.apply(document)) == {"pins/p": "ended"}
    assert (await store.export())["pins"] == []


# ---- texts


def test_yaml_is_read_as_people_mean_it() -> None:
    text = "a: no\nb: 1:30\nc: 2030-01-01T00:00:00Z\nno: 0x10\nd: 1e3\ne:\nf: '5'\ng: ~\nh: 007\ni: true\nj: 5 # x\n"
    assert read(text) == [
        {"a": "no", "b": "1:30", "c": "2030-01-01T00:00:00Z", "no": 16, "d": 1000.0, "e": None, "f": "5", "g": None,
         "h": 7, "i": True, "j": 5}
    ]  # fmt: skip
    assert read("- &a {x: 1}\n- *a") == [[{"x": 1}, {"x": 1}]]
    assert read("---\na: 1\n---\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert lines("a:\n  - b: 1\n\n    c: 2\n") == {"a": 2, "a[0]": 2, "a[0].b": 2, "a[0].c": 4}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, "line 7, column"),
        ("[" * 100_000, "at most 32 levels"),
        ("a: !!python/object/apply:os.system [ls]", "is not supported"),
        ("a: \x00", "unacceptable character"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ('{"a": NaN}', "NaN"),
        ("? [1]\n: 2", "expected text as a key"),
        ("a: &x 1\na: *x", "occurs twice"),
    ],
)
def test_a_text_that_is_no_document_is_refused(text: str, expected: str) -> None:
    with pytest.raises(DocumentSyntaxError, match=expected):
        read(text)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
FLAT = st.dictionaries(TEXTS, st.none() | st.booleans() | st.integers(-(10**30), 10**30)
                       | st.floats(allow_nan=False, allow_infinity=False) | TEXTS, max_size=5)  # fmt: skip
WRITTEN = st.dictionaries(
    TEXTS, FLAT | st.lists(FLAT.filter(bool) | TEXTS, max_size=4) | st.lists(st.integers(0, 1 << 32)) | TEXTS,
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=size(200, 50), deadline=None, derandomize=True)
@given(WRITTEN)
def test_written_values_are_read_again(document: dict[str, Any]) -> None:
    assert read(write(document, ["a comment"])) == [document]


# ---- export, and back


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-_", min_size=1, max_size=12)
OWNERS = st.sampled_from(["", "team-a", "team-b"])
NOTES = st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]), max_size=20)
SELECTORS = st.none() | st.dictionaries(st.sampled_from(["zone", "gpu"]), st.sampled_from(["eu", "1", ""]), min_size=1)
SALTS = st.text(st.characters(exclude_categories=["C"], exclude_characters="@/\\"), min_size=1, max_size=12)
QUOTAS = st.fixed_dictionaries(
    {"limit_bytes": st.none() | st.integers(1 << 30, 1 << 40), "note": NOTES, "managed_by": OWNERS},
    optional={
        "floor_bytes": st.integers(0, 1 << 20), "weight": st.floats(0.01, 1000), "selector": SELECTORS,
        "store_rate_bytes": st.none() | st.integers(1, 1 << 40), "on_exceed": st.sampled_from(["evict_self", "reject"]),
        "mode": st.sampled_from(["enforce", "observe"]),
    },
)  # fmt: skip
KEYS = st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), min_size=1, max_size=3, unique=True)
ENDS = st.sampled_from([
    {}, {"expires_at": 2_050_000_000.25}, {"expires_at": 2_000_000_000}, {"ttl_s": 3600.5, "refresh_on_hit": True},
])  # fmt: skip
PINS = st.builds(
    dict.__or__,
    st.fixed_dictionaries({"model": st.sampled_from(["m", "org/model"]), "note": NOTES, "managed_by": OWNERS,
                           "tenant": SALTS, "keys": KEYS, "strength": st.sampled_from(["soft", "guaranteed"])},
                          optional={"selector": SELECTORS, "tier": st.sampled_from(["host", "gpu"])}),
    ENDS,
)  # fmt: skip
POLICIES = st.fixed_dictionaries(
    {"algorithm": st.sampled_from(["lru", "arc"]), "managed_by": OWNERS, "priority": st.integers(0, 1000),
     "selector": SELECTORS.filter(bool), "high_watermark": st.floats(0.6, 1), "low_watermark": st.floats(0.5, 0.6)},
    optional={"admission": st.booleans()},
)  # fmt: skip
TIERS = st.fixed_dictionaries(
    {
        "type": st.just("disk"),
        "budget_bytes": st.integers(4 << 30, 1 << 60),
        "parameters": st.fixed_dictionaries(
            {
                "directories": st.lists(
                    st.sampled_from(["/a", "/b c", "/no", "/1"]), min_size=1, max_size=3, unique=True
                )
            },
            optional={"threads": st.integers(1, 64), "direct_io": st.sampled_from(["on", "off", "auto"])},
        ),
    },
    optional={"order": st.integers(0, 1000), "load_deadline_s": st.floats(0.1, 300)},
)
DOCUMENTS = st.fixed_dictionaries({
    "apiVersion": st.just("larder/v1"),
    "quotas": st.dictionaries(SALTS, QUOTAS, max_size=4),
    "pins": st.dictionaries(NAMES, PINS, max_size=3),
    "policies": st.dictionaries(NAMES.filter(lambda name: name != "default"), POLICIES, max_size=2),
    "tiers": st.dictionaries(NAMES.filter(lambda name: len(name) <= 64), TIERS, max_size=2),
})  # fmt: skip


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


def test_an_export_that_is_applied_to_an_empty_database_is_exported_again(
    database_url: str, runner: asyncio.Runner
) -> None:
    async def prepared() -> Store:
        found = Store(database_url)
        await migrate.upgrade(found.database)
        return found

    async def there_and_back(found: Store, document: dict[str, Any]) -> None:
        await found.empty()
        await found.apply(document)
        first = await found.export()
        assert len(first["quotas"]) == len(document["quotas"])
        assert {pin["name"] for pin in first["pins"]} == set(document["pins"])
        text = write(first, ["exported"])
        assert (await found.apply(text, dry_run=True)).unchanged == sum(
            len(first[k]) for k in ("quotas", "pins", "policies", "tiers")
        )
        await found.empty()
        await found.apply(text)
        assert await found.export() == first
        assert write(await found.export(), ["exported"]) == text
        again = await found.apply(text)
        assert (again.created, again.updated, again.deleted) == (0, 0, 0)

    store = runner.run(prepared())

    @settings(max_examples=12, deadline=None, derandomize=True)
    @given(DOCUMENTS)
    def check(document: dict[str, Any]) -> None:
        runner.run(there_and_back(store, document))

    try:
        check()
    finally:
        runner.run(store.database.close())


async def test_an_export_has_the_requested_records(store: Store) -> None:
    await store.apply(FULL)
    await store.apply({"apiVersion": "larder/v1", "quotas": {"b": {"limit_bytes": 1000}}})
    answer = await store.exports.export(["quotas"], "team-a", BY)
    assert answer.document == {
        "apiVersion": "larder/v1",
        "managed_by": "team-a",
        "quotas": [
            {"tenant": "_default", "limit_bytes": None, "weight": 2.0, "mode": "observe", "selector": {"zone": "eu"}},
            {"tenant": "acme", "limit_bytes": "4GiB", "floor_bytes": "1MiB", "note": "no"},
        ],
    }
    whole = await store.export()
    assert [pin["name"] for pin in whole["pins"]] == ["fixed", "once", "sys"]
    assert whole["pins"][0] == {
        "name": "fixed", "model": "m", "tenant": "acme", "strength": "soft", "expires_at": 2051222400.0,
        "managed_by": "team-a", "keys": [KEY],
    }  # fmt: skip


# ---- the file of a start


async def boot(store: Store, file: Path) -> StartupDocument:
    return StartupDocument(str(file), True, 1 << 20, store.apply_service, store.database, store.bus)


async def test_the_file_of_a_start_is_applied_and_a_bad_one_changes_nothing(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "larder.yaml"
    with pytest.raises(StartupDocumentError, match="cannot be read: No such file"):
        await (await boot(store, file)).start()
    file.write_text("apiVersion: larder/v1\nquotas: {acme: {limit_bytes: many}}\n")
    with pytest.raises(StartupDocumentError, match=r"quotas\.acme\.limit_bytes: .*\(line 2\); the database is new"):
        await (await boot(store, file)).start()
    file.write_text("apiVersion: larder/v1\nquotas: {a: {limit_bytes: many}, b: {weight: 0}, c: {floor_bytes: x}}\n")
    with pytest.raises(
        StartupDocumentError, match=r"quotas\.a\.limit_bytes: .*; quotas\.b\.weight: .*; quotas\.c\.floor_bytes: "
    ):
        await (await boot(store, file)).start()
    file.write_text("apiVersion: larder/v1\nquotas: {acme: {limit_bytes: 5}, b: {weight: 2}}\n")
    good = await boot(store, file)
    await good.start()
    assert (good.in_force, [q["managed_by"] for q in (await store.export())["quotas"]]) == (True, ["boot"] * 2)
    task = asyncio.create_task(good.run())
    try:
        file.write_text("apiVersion: larder/v1\nquotas: {acme: {limit_bytes: 5}}\n")
        good.trigger()
        async with asyncio.timeout(60):
            while len((await store.export())["quotas"]) != 1:
                await asyncio.sleep(0.01)
            file.write_text("quotas: [")
            while good.in_force:  # found by looking
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
    assert (good.refused, store.bus.recent[-1].name) == (1, "apply_file.refused")
    bad = await boot(store, file)
    await bad.start()  # starts: there is something to go on with
    assert (bad.in_force, len((await store.export())["quotas"])) == (False, 1)


async def test_a_file_is_not_tried_again_at_once_while_the_database_is_away(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "larder.yaml"
    file.write_text("apiVersion: larder/v1\nquotas: {acme: {limit_bytes: 5}}\n")
    startup = await boot(store, file)
    await startup.start()

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the database did not answer; try again")

    file.write_text("apiVersion: larder/v1\nquotas: {acme: {limit_bytes: 50}}\n")
    assert await startup._is_due()
    with monkeypatch.context() as patch:
        patch.setattr(store.apply_service, "apply", away)
        assert "did not answer" in await startup._try()
    startup._tried_at = math.inf
    assert not await startup._is_due(), "only the time makes it due"
    startup._tried_at = -math.inf
    assert await startup._is_due()
    assert (await startup._try(), startup.in_force) == ("", True)


# ---- the command line


def test_the_command_line_diffs_applies_and_exports_with_exit_codes(socket_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "larder.yaml"
    file.write_text(FULL)
    with Up(socket_dir) as running:
        running.until_ready()
        diff = running.cli("diff", "-f", str(file))
        assert (diff.returncode, diff.stderr) == (3, "")
        assert "  + acme (team-a)\n      limit_bytes: 4 GiB\n" in diff.stdout
        assert diff.stdout.endswith("7 to create, 0 to update, 0 to delete, 0 unchanged\n")
        assert running.get("/api/v1/quotas").json()["total"] == 0
        applied = running.cli("apply", "-f", str(file), "--wait", "30s")
        assert applied.returncode == 0, applied.stderr
        assert applied.stdout.endswith("7 created, 0 updated, 0 deleted, 0 unchanged; applied\n")
        assert running.cli("diff", "-f", str(file)).returncode == 0
        assert running.cli("diff", "-f", str(tmp_path)).returncode == 0, "a folder of documents"
        (tmp_path / "none").mkdir()
        assert "expected files that end in .yaml" in running.cli("diff", "-f", str(tmp_path / "none")).stderr
        exported = running.cli("export")
        assert exported.stdout.startswith("# Exported by larder ")
        second = tmp_path / "export.yaml"
        second.write_text(exported.stdout)
        same = running.cli("diff", "-f", str(second), "--json")
        assert (same.returncode, json.loads(same.stdout)["unchanged"]) == (0, 7)
        file.write_text("apiVersion: larder/v1\nmanaged_by: team-a\nquotas: {acme: {limit_bytes: 8GiB}}\n")
        assert running.cli("diff", "-f", str(file), "--prune").returncode == 3
        completed = running.cli("apply", "-f", str(file), "--prune")
        assert completed.returncode == 2
        assert "6 records would be deleted, and this was not confirmed" in completed.stderr
        assert running.get("/api/v1/quotas").json()["total"] == 2
        pruned = running.cli("apply", "-f", str(file), "--prune", "--yes")
        assert "0 created, 1 updated, 6 deleted, 0 unchanged" in pruned.stdout, pruned.stderr
        file.write_text("apiVersion: larder/v1\nquotas:\n  - {tenant: a, weight: 0}\n  - {colour: 1}\n")
        wrong = running.cli("diff", "-f", str(file), "-f", str(second))
        assert wrong.returncode == 1
        assert f"{file}: quotas[0].weight: expected 0.01 to 1000, got 0 (line 3)\n" in wrong.stderr
        assert running.cli("diff", "-f", str(tmp_path / "none")).returncode == 1
        for arguments in (["diff"], ["diff", "--colour", "-f", "-"]):
            assert running.cli(*arguments).returncode == 2


def test_a_new_larder_with_a_bad_file_does_not_start_and_an_old_one_does(socket_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "larder.yaml"
    file.write_text("apiVersion: larder/v2\n")
    bad = Up(socket_dir, LARDER_APP__APPLY_FILE=str(file))
    assert bad.process.wait(timeout=60) == 1
    assert f"Error: apply_file {file}: apiVersion: expected 'larder/v1'" in bad.end()
    file.write_text("apiVersion: larder/v1\nquotas: {acme: {limit_bytes: 5}}\n")
    with Up(socket_dir, LARDER_APP__APPLY_FILE=str(file)) as running:
        running.until_ready()
        assert running.get("/api/v1/quotas/acme").json()["managed_by"] == "boot"
        file.write_text("apiVersion: larder/v1\nquotas: {acme: {limit_bytes: 6}}\n")
        running.process.send_signal(1)
        until(lambda: running.get("/api/v1/quotas/acme").json()["limit_bytes"] == 6, 60)
        assert "larder_apply_file_in_force 1.0" in running.get("/metrics").text
    file.write_text("nonsense")
    with Up(socket_dir, LARDER_APP__APPLY_FILE=str(file)) as running:
        running.until_ready()
        assert running.get("/api/v1/quotas/acme").json()["limit_bytes"] == 6
        assert "larder_apply_file_in_force 0.0" in running.get("/metrics").text
    assert "apply_file.refused" in running.end()
