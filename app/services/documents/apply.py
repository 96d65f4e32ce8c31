"""Applies documents: records of all types in one transaction, all or nothing.

Slow work without the database (parsing, hashing, comparing) runs in threads, and rows are written in batches, so that
other requests are served meanwhile.
"""

import asyncio
import gc
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec

from app.errors import FieldError, FloorsExceedCapacity, Forbidden, Invalid, PreconditionFailed
from app.ingest.fleet import Fleet
from app.schemas.documents.apply import ApplyAnswer, ApplyPut, FieldChange, RecordChange, TypeStatus
from app.schemas.records.pins import PinPut
from app.services.base import snapshot_sizes
from app.services.base.changes import Action, Change, Changes
from app.services.base.fair_limiter import Bounds, FairLimiter
from app.services.base.principals import Principal
from app.services.base.snapshot_sizes import size_of
from app.services.base.yielding import awaited, in_thread, with_pauses
from app.services.documents.declared import DeclaredRecords, declare
from app.services.documents.plan import ApplyPlan, PlanStep, StoredRecords, outcome
from app.services.documents.resource_types import KINDS, Encode
from app.services.records import ceilings, owners
from app.services.records.pin_quota import PinQuota
from app.services.records.progress import RecordProgress
from app.services.records.quotas import excess, floor_of
from app.services.records.record_types import PushedType, Values
from app.services.records.tiers import check_drained
from app.services.records.tokenizers import EncodedText, Tokenizers
from app.store.base.database import Database
from app.store.records import bulk, generations
from app.store.records.snapshot_size import SnapshotSize
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, SnapshotType

MAX_TEXTS = 100
"""Largest number of text pins in one document: each is tokenized in its own process."""
TEXTS_S = 60.0
"""Seconds for all texts of one document."""
BOUNDS = Bounds(at_once=2, each_at_once=1, waiting=16, each_waiting=2)
LIMITED_CHARACTERS = 1 << 20
"""Largest number of characters in a document of a caller who is limited to tenants."""
_ALSO_STORED = ("generation", "created_at", "updated_at")


class Apply:
    """Changes records to match documents."""

    def __init__(
        self,
        database: Database,
        changes: Changes,
        progress: RecordProgress,
        fleet: Fleet,
        tokenizers: Tokenizers,
        pin_quota: PinQuota,
    ) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet
        self._tokenizers = tokenizers
        self._pin_quota = pin_quota
        # Limits the number of documents in memory. Dry runs have their own limit, so that they do not delay changes.
        self._turns = {dry_run: FairLimiter("documents", BOUNDS) for dry_run in (True, False)}
        self._uncollected = 0
        """Number of documents for which garbage collection is paused."""

    @contextmanager
    def _without_collection(self) -> Iterator[None]:
        """Pause Python's cyclic garbage collector while a document is in memory. A full collection walks every live
        object and blocks all other work: with ten thousand records for 0.1 to 0.3 s, several times. The objects of a
        document have no cycles, so reference counting frees them."""
        self._uncollected += 1
        gc.disable()
        try:
            yield
        finally:
            self._uncollected -= 1
            if not self._uncollected:
                gc.enable()

    async def apply(self, request: ApplyPut, by: Principal, wait_s: float = 0.0, *, assumed: str = "") -> ApplyAnswer:
        """Apply a document and return what changed. `assumed` is the owner of records without one. Raises Invalid with
        every fault; Conflict with every record of another owner; Forbidden, FloorsExceedCapacity, PreconditionFailed,
        TooManyRequests."""
        if not request.dry_run and not by.may("operator"):
            raise Forbidden(f"this needs the role 'operator', and {by.actor!r} is a {by.role}: only a dry run")
        _check_size(request, by)
        async with self._turns[request.dry_run].turn(by.share):
            with self._without_collection():
                result, numbers = await self._done(request, by, assumed)
        deadline = time.monotonic() + wait_s
        for name in KINDS:
            if wait_s and not request.dry_run and result.changes(name):
                await self._progress.wait(name, numbers[name], max(0.0, deadline - time.monotonic()))
        return ApplyAnswer(
            dry_run=request.dry_run,
            created=result.count("create"),
            updated=result.count("update"),
            deleted=result.count("delete"),
            unchanged=result.count("unchanged", "ended"),
            records=await in_thread(_record_changes, result),
            generations=numbers if by.salts is None else {},
            status={name: self._status(name, numbers[name]) for name in KINDS},
        )

    async def _done(self, request: ApplyPut, by: Principal, assumed: str) -> tuple[ApplyPlan, dict[SnapshotType, int]]:
        """Return the executed plan (for a dry run, the plan only) and the generations."""
        declared = await in_thread(
            declare, request.document, request.managed_by, by, time.time(), self._encoder(by), assumed
        )
        _check_prune(request, declared)
        _check_document(by, declared)
        if request.dry_run:
            async with self._database.read() as session:
                heads = await generations.heads(session)
                numbers = {kind: heads[kind] for kind in SNAPSHOT_TYPES}
                change = Change(session, by, time.time(), {})
                return await self._outcome(change, request, declared, numbers), numbers
        async with self._changes.begin(by, *KINDS) as change:
            numbers = {kind: number - 1 for kind, number in change.generations.items()}
            result = await self._outcome(change, request, declared, numbers)
            for kind in KINDS.values():
                await _write(change, kind, result)
                if result.changes(kind.name):
                    numbers[kind.name] = change.generations[kind.name]
        return result, numbers

    def _encoder(self, by: Principal) -> Encode:
        """Return the encoder for the thread that parses a document: each text is tokenized in its own process."""
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + TEXTS_S
        texts = 0

        def encode(pin: PinPut) -> EncodedText | None:
            nonlocal texts
            if (pin.text is None and pin.messages is None) or not pin.model:
                return None
            texts += 1
            if texts > MAX_TEXTS:
                raise Invalid.at("text", f"expected at most {MAX_TEXTS} pins of texts or messages in one document")
            if time.monotonic() > deadline:
                raise Invalid.at("text", f"the texts of this document took longer than {TEXTS_S:g} s to tokenise")
            return awaited(asyncio.run_coroutine_threadsafe(self._tokenizers.encoded(pin, by), loop))

        return encode

    def _status(self, name: SnapshotType, generation: int) -> TypeStatus:
        status = self._progress.status(name, generation)
        behind = sorted(node for node, at in status.nodes.items() if at.state != "in_sync")
        return TypeStatus(status.applied, behind)

    async def _outcome(
        self, change: Change, request: ApplyPut, declared: DeclaredRecords, numbers: dict[SnapshotType, int]
    ) -> ApplyPlan:
        by, now = change.by, change.now
        _check_expected(request, numbers, by)
        stored: StoredRecords = {}
        for kind in KINDS.values():
            columns = (kind.key, *kind.written, *_ALSO_STORED)
            stored[kind.name] = await bulk.rows(change.session, kind.row, kind.key, dict.fromkeys(columns))
        result = await in_thread(
            lambda: outcome(declared, stored, by, now, prune=request.prune, take_over=request.take_over)
        )
        _check_owners(by, declared, result)
        if by.salts is not None:
            await _check_ceilings(change, declared, result)
        self._check_floors(declared, stored, result, by)
        for step in result.of("tiers", "delete"):
            if step.before is not None and step.before["spill"] == "drain":
                check_drained(step.key, self._fleet)
        pins = _pins(stored["pins"], result)
        await in_thread(self._pin_quota.check_all, by, stored["pins"].values(), pins)
        await in_thread(_check_sizes, stored, result, pins)
        return result

    def _check_floors(self, declared: DeclaredRecords, stored: StoredRecords, result: ApplyPlan, by: Principal) -> None:
        """Check the floors after the whole plan: one floor may grow by what another releases."""
        before = {key: floor_of(row) for key, row in stored["quotas"].items()}
        after = before | {step.key: floor_of(step.after) for step in result.changes("quotas")}
        message = excess(before.values(), after.values(), self._fleet.connected(), whole=by.salts is None)
        if message is None:
            return
        records = declared.records["quotas"]
        grown = [
            FieldError(f"{records[key].path}.floor_bytes", message)
            for key, (_, floor) in after.items()
            if key in records and floor > before.get(key, (None, 0))[1]
        ]
        raise FloorsExceedCapacity(message, grown)


def _check_document(by: Principal, declared: DeclaredRecords) -> None:
    """Refuse the owner of the startup document to limited callers. Raises Forbidden."""
    if by.salts is not None and declared.owner == owners.BOOT:
        message = (
            f"{owners.BOOT!r} is reserved for the file that the management plane applies at its start; "
            "name another owner"
        )
        raise Forbidden.at("managed_by", message)


def _check_owners(by: Principal, declared: DeclaredRecords, result: ApplyPlan) -> None:
    """Check that the caller may set the owners of all records. Raises Forbidden with every fault."""
    faults: list[FieldError] = []
    for step in result.steps:
        if step.action not in ("create", "update") or step.after is None:
            continue
        current = None if step.before is None else step.before["managed_by"]
        with _collected(faults, _path(declared, step)):
            booting = declared.assumed == owners.BOOT
            owners.check(by, current, step.after["managed_by"], declared.owner, booting=booting)
    if faults:
        raise Forbidden.about(faults)


async def _check_ceilings(change: Change, declared: DeclaredRecords, result: ApplyPlan) -> None:
    """Check the plan of a caller who is limited to tenants against the ceilings. Raises Forbidden with every fault."""
    faults: list[FieldError] = []
    for step in result.changes("quotas") + result.of("pins", "create", "update"):
        before = None if step.before is None else step.kind.audited(step.before)
        after = None if step.after is None else step.kind.audited(step.after)
        with _collected(faults, _path(declared, step)):
            if step.kind.name == "quotas":
                await ceilings.check_quota(change, step.key, before, after)
            elif step.after is not None:
                current = None if step.before is None else step.before["selector"]
                await ceilings.check_pin(change, step.after["tenant"], current, step.after)
    if faults:
        raise Forbidden.about(faults)


def _path(declared: DeclaredRecords, step: PlanStep) -> str:
    record = declared.records[step.kind.name].get(step.key)
    return f"{step.kind.name}.{step.kind.shown(step.key)}" if record is None else record.path


@contextmanager
def _collected(faults: list[FieldError], path: str) -> Iterator[None]:
    """Collect the faults of a refusal, which are about the record at a path."""
    try:
        yield
    except Forbidden as error:
        found = [FieldError(f"{path}.{fault.path}", fault.message) for fault in error.errors]
        faults += found or [FieldError(path, error.message)]


def _check_sizes(stored: StoredRecords, result: ApplyPlan, pins: Collection[Mapping[str, Any]]) -> None:
    """Check that the resulting snapshots can be sent to nodes. Raises Conflict."""
    for kind in KINDS.values():
        growth = SnapshotSize()
        for step in with_pauses(result.changes(kind.name), 1000):
            name = kind.shown(step.key)
            growth += size_of(kind.name, name, step.after) - size_of(kind.name, name, step.before)
        if growth.records > 0 or growth.bytes > 0 or growth.keys > 0:
            after = growth
            for key, row in with_pauses(stored[kind.name].items(), 1000):
                after += size_of(kind.name, kind.shown(key), row)
            keys = _keys(pins) if kind.name == "pins" else 0
            snapshot_sizes.check(kind.name, replace(after, keys=keys), growth)


def _pins(rows: Mapping[str, Mapping[str, Any]], result: ApplyPlan) -> Collection[Mapping[str, Any]]:
    """Return all pins that exist after the plan."""
    pins = dict(rows)
    for step in result.changes("pins"):
        pins.pop(step.key, None)
        if step.after is not None:
            pins[step.key] = step.after
    return pins.values()


def _keys(pins: Collection[Mapping[str, Any]]) -> int:
    """Return the number of keys of all pins; pins with the same keys count once."""
    return sum({(pin["model"], pin["tenant"], pin["keys_digest"]): pin["key_count"] for pin in pins}.values())


def _check_size(request: ApplyPut, by: Principal) -> None:
    """Limit the document of a caller who is limited to tenants: parsing the worst text takes seconds per megabyte.

    Raises Invalid.
    """
    if by.salts is None:
        return
    parts = request.document if isinstance(request.document, list) else [request.document]
    size = sum(len(part if isinstance(part, str) else msgspec.json.encode(part)) for part in parts)
    if size > LIMITED_CHARACTERS:
        limit_text = f"{LIMITED_CHARACTERS:,} characters of a token that is limited to tenants"
        raise Invalid.at("document", f"expected at most {limit_text}, got {size:,}")


def _check_prune(request: ApplyPut, declared: DeclaredRecords) -> None:
    if request.prune and not (declared.owner or declared.assumed):
        raise Invalid.at("prune", "expected managed_by, here or in the document: only an owner's records are deleted")


def _check_expected(request: ApplyPut, numbers: dict[SnapshotType, int], by: Principal) -> None:
    if request.expect and by.salts is not None:
        raise Forbidden.at("expect", "generations are the fleet's: only callers of all tenants may expect one")
    for kind, number in (request.expect or {}).items():
        if numbers[kind] != number:
            raise PreconditionFailed(
                f"{kind} were changed meanwhile: expected generation {number}, and there is {numbers[kind]}"
            )


async def _write(change: Change, kind: PushedType[Any], result: ApplyPlan) -> None:
    """Write the rows and the audit entries of one type."""
    steps, work = await asyncio.to_thread(_prepared, change, kind, result)
    await bulk.put_bodies(change.session, work.bodies, change.now)
    await bulk.delete(change.session, kind.row, kind.key, work.deleted)
    await bulk.insert(change.session, kind.row, work.created)
    await bulk.update(change.session, kind.row, work.changed)
    await bulk.drop_unused_bodies(change.session, work.old_digests)
    for batch in bulk.batches(steps):
        for step in batch:
            before = None if step.before is None else kind.audited(step.before)
            after = None if step.after is None else kind.audited(step.after)
            kind.note(change, cast(Action, step.action), step.key, before, after)
        await asyncio.sleep(0)


@dataclass
class _Work:
    """Rows and bodies of one type to write."""

    created: list[Values] = field(default_factory=list)
    changed: list[Values] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)
    old_digests: list[str] = field(default_factory=list)


def _prepared(change: Change, kind: PushedType[Any], result: ApplyPlan) -> tuple[list[PlanStep], _Work]:
    """Return the steps and the rows to write; runs in a thread."""
    steps, work = result.changes(kind.name), _Work()
    owner = {"owner": change.by.actor} if kind.name == "pins" else {}
    version = {"generation": change.generations[kind.name], "updated_at": change.now}
    for step in with_pauses(steps, 1000):
        if step.after is None:
            work.deleted.append(step.key)
        elif step.before is None:
            work.created.append({**step.after, **owner, "created_at": change.now, **version})
        else:
            work.changed.append({**step.after, **version})
    if kind.name == "pins":
        work.bodies = {step.after["keys_digest"]: step.body for step in steps if step.after is not None}
        old = [step.before["keys_digest"] for step in steps if step.before is not None]
        work.old_digests = list(dict.fromkeys(old))
    return steps, work


def _record_changes(result: ApplyPlan) -> list[RecordChange]:
    return [
        RecordChange(
            type=step.kind.name,
            name=step.kind.shown(step.key),
            action=step.action,
            managed_by=(step.after or step.before or {})["managed_by"],
            fields={name: FieldChange(*change) for name, change in step.fields.items()},
        )
        for step in with_pauses(result.steps, 200)
    ]
