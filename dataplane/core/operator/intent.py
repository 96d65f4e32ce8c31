"""Snapshots from the management plane: validate each as a whole, apply it completely or not at all, and keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import TypeVar

import msgspec

from dataplane.base.field_errors import described
from dataplane.base.units import MAX_SIZE_BYTES
from dataplane.base.visible import is_printable
from dataplane.core.blocks.blocks import Block
from dataplane.core.eviction.reclaimer import Reclaimer
from dataplane.core.operator.tier_records import TierRecords, wrong_in_tier, wrong_in_tiers
from dataplane.core.pool.pins import Pin
from dataplane.core.pool.pool import Pool
from dataplane.core.tenants.accounts import effective_floors
from dataplane.core.tenants.tenant import Rate
from dataplane.policies.admission import Admission
from dataplane.policies.registry import POLICIES
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.records import (
    MAX_PINNED_KEYS,
    MAX_QUOTA_TIERS,
    MAX_RECORDS,
    MAX_WEIGHT,
    MIN_WEIGHT,
    POLICY_IN_FORCE,
    PinSpec,
    PolicySpec,
    QuotaSpec,
    TierQuota,
)
from dataplane.protocol.control.snapshots import Fault, Snapshot, digest_of
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.events import PinExpired
from dataplane.protocol.keys import KEY_BYTES, split_keys
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.observed import Observed
from dataplane.protocol.salts import check_salt, shown
from dataplane.protocol.spaces import MAX_NAME_CHARACTERS
from dataplane.protocol.states import State
from dataplane.protocol.tiers import EXPECTED_TIER_NAME, TierSpec, is_tier_name

S = TypeVar("S", QuotaSpec, PinSpec, PolicySpec, TierSpec)
MAX_FAULTS = 100
MAX_BODY_BYTES = MAX_KEYS_PER_REQUEST * KEY_BYTES
MAX_REFRESH_S = 366 * 86_400.0
MIN_WATERMARK = 0.5
LOOKED_UP_TOGETHER = 8192
"""Number of keys of changed pins after which a look-up takes no further chain."""


Wrong = tuple[str, Code, str]
"""What is wrong in a snapshot: the path of the field, in a record or in the snapshot, a code, and why."""


def _fault(path: str, code: Code, message: str) -> Fault:
    return Fault(path, code.name.lower(), message)


def _records(
    snapshot: Snapshot, kind: type[S], name: str, check: Callable[[S], Iterable[Wrong]]
) -> tuple[dict[int, S], list[Fault]]:
    """Return the decodable records of a body by position, and the faults found (at most MAX_FAULTS). `name` is the
    field by which records differ."""
    if digest_of(snapshot.body) != snapshot.digest:
        return {}, [_fault("digest", Code.BAD_DIGEST, "the body does not match its digest")]
    try:
        raws = msgspec.msgpack.decode(snapshot.body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return {}, [_fault(snapshot.type, Code.MALFORMED, str(error))]
    if len(raws) > MAX_RECORDS:
        return {}, [_fault(snapshot.type, Code.TOO_MANY, f"expected at most {MAX_RECORDS} records, got {len(raws)}")]
    decoder = msgspec.msgpack.Decoder(kind)
    records: dict[int, S] = {}
    faults: list[Fault] = []
    for number, raw in enumerate(raws):
        path = f"{snapshot.type}[{number}]"
        try:
            record = decoder.decode(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            below, message = described(str(error), kind)
            faults.append(_fault(f"{path}.{below}" if below else path, Code.BAD_FIELD, message))
        else:
            faults += [_fault(f"{path}.{field}", code, message) for field, code, message in check(record)]
            records[number] = record
        if len(faults) >= MAX_FAULTS:
            break
    seen: set[str] = set()
    for number, record in records.items():
        value = getattr(record, name)
        if value in seen:
            faults.append(_fault(f"{snapshot.type}[{number}].{name}", Code.DUPLICATE, f"{value!r} occurs twice"))
        seen.add(value)
    return records, faults[:MAX_FAULTS]


def _wrong_bytes(record: object, low_by_name: Mapping[str, int], path: str = "") -> Iterator[Wrong]:
    """Check fields that are None or a number of bytes."""
    for name, low in low_by_name.items():
        value = getattr(record, name)
        if value is not None and not low <= value <= MAX_SIZE_BYTES:
            yield path + name, Code.BAD_FIELD, f"expected {low} to {MAX_SIZE_BYTES}, got {value}"


def _wrong_floor(quota: QuotaSpec | TierQuota, path: str = "") -> Iterator[Wrong]:
    if quota.limit_bytes is not None and 0 <= quota.limit_bytes < quota.floor_bytes:
        message = f"expected at most the limit of {quota.limit_bytes}, got {quota.floor_bytes}"
        yield f"{path}floor_bytes", Code.BAD_FIELD, message


def _wrong_tenant(salt: str) -> Iterator[Wrong]:
    try:
        check_salt(salt)
    except ProtocolError as error:
        yield "tenant", error.code, error.message


def _wrong_quota(spec: QuotaSpec) -> Iterator[Wrong]:
    yield from _wrong_tenant(spec.tenant)
    yield from _wrong_bytes(spec, {"limit_bytes": 0, "floor_bytes": 0, "pin_budget_bytes": 0, "store_rate_bytes": 1})
    if not MIN_WEIGHT <= spec.weight <= MAX_WEIGHT:
        yield "weight", Code.BAD_FIELD, f"expected {MIN_WEIGHT} to {MAX_WEIGHT}, got {spec.weight}"
    yield from _wrong_floor(spec)
    if len(spec.tiers) > MAX_QUOTA_TIERS:
        yield "tiers", Code.TOO_MANY, f"expected at most {MAX_QUOTA_TIERS} tiers, got {len(spec.tiers)}"
        return
    for name, quota in spec.tiers.items():
        if not is_tier_name(name):
            yield "tiers", Code.BAD_FIELD, f"{EXPECTED_TIER_NAME}, got {name!r}"
            continue
        yield from _wrong_bytes(quota, {"floor_bytes": 0, "limit_bytes": 0}, f"tiers.{name}.")
        yield from _wrong_floor(quota, f"tiers.{name}.")


def _wrong_pin(spec: PinSpec) -> Iterator[Wrong]:
    yield from _wrong_tenant(spec.tenant)
    for name in ("name", "model"):
        text = getattr(spec, name)
        if not text or len(text) > MAX_NAME_CHARACTERS or not is_printable(text):
            yield name, Code.BAD_FIELD, f"expected 1 to {MAX_NAME_CHARACTERS} printable characters"
    if spec.expires_at is not None and not isfinite(spec.expires_at):
        yield "expires_at", Code.BAD_FIELD, f"expected Unix seconds, got {spec.expires_at}"
    if spec.refresh_s is not None and not (0 < spec.refresh_s <= MAX_REFRESH_S and spec.expires_at is not None):
        message = f"expected up to {MAX_REFRESH_S} seconds and an end to move, got {spec.refresh_s}"
        yield "refresh_s", Code.BAD_FIELD, message
    if spec.strength == "permanent" and spec.expires_at is not None:
        yield "expires_at", Code.BAD_FIELD, "a permanent pin has no end"
    if len(spec.keys_digest) != 64 or not set(spec.keys_digest) <= set("0123456789abcdef"):
        yield "keys_digest", Code.BAD_FIELD, "expected 64 hex digits"


def _wrong_policy(spec: PolicySpec) -> Iterator[Wrong]:
    if spec.name != POLICY_IN_FORCE:
        message = f"expected {POLICY_IN_FORCE!r}, the one policy of a node, got {spec.name!r}"
        yield "name", Code.BAD_FIELD, message
    if not 0 < spec.admission_idle_s <= MAX_REFRESH_S:
        yield "admission_idle_s", Code.BAD_FIELD, f"expected up to {MAX_REFRESH_S} seconds, got {spec.admission_idle_s}"
    if not MIN_WATERMARK <= spec.low_watermark <= spec.high_watermark <= 1.0:
        message = f"expected {MIN_WATERMARK} <= low <= high <= 1, got {spec.low_watermark}, {spec.high_watermark}"
        yield "high_watermark", Code.BAD_FIELD, message


@dataclass(slots=True)
class Intent:
    """The intent of the management plane, as far as this node has applied it."""

    pool: Pool
    reclaimer: Reclaimer
    observed: dict[str, Observed] = field(default_factory=dict)
    """The snapshot of each type that is in force."""
    bodies: dict[str, bytes] = field(default_factory=dict)
    """Pin bodies in force, by digest."""
    policy: PolicySpec = field(default_factory=lambda: PolicySpec(POLICY_IN_FORCE))
    """The policy in force."""

    @property
    def armed(self) -> bool:
        """Return whether a quotas snapshot is in force. Without one, no limit applies."""
        return "quotas" in self.observed

    def stale(self, snapshot: Snapshot) -> list[Fault]:
        """Return a fault if a newer generation from the same database is in force."""
        observed = self.observed.get(snapshot.type)
        if observed is None or observed.store != snapshot.store or snapshot.generation >= observed.generation:
            return []
        message = f"generation {observed.generation} is in force, got {snapshot.generation}"
        return [_fault("generation", Code.STALE_GENERATION, message)]

    def needed_bodies(self, snapshot: Snapshot) -> list[str]:
        """Return the digests of pin bodies that this node lacks.

        The result is empty if the snapshot is invalid, because `apply` reports the faults.
        """
        if snapshot.type != "pins" or self.stale(snapshot):
            return []
        specs, faults = _records(snapshot, PinSpec, "name", _wrong_pin)
        if faults:
            return []
        return sorted({spec.keys_digest for spec in specs.values()} - self.bodies.keys())

    def apply(self, snapshot: Snapshot, bodies: Mapping[str, bytes], tiers: TierRecords, now: float) -> list[Fault]:
        """Apply a snapshot, or return every fault and change nothing. `tiers` opens the tiers of records."""
        faults, put_in_force = self._checked(snapshot, bodies, tiers, now)
        if not faults:
            put_in_force()
            self.observed[snapshot.type] = Observed(snapshot.generation, snapshot.digest, snapshot.store)
        return faults

    def faults(self, snapshot: Snapshot, bodies: Mapping[str, bytes], tiers: TierRecords) -> list[Fault]:
        """Return the faults that `apply` would find in a snapshot, without changing anything."""
        return self._checked(snapshot, bodies, tiers, 0.0)[0]

    def _checked(
        self, snapshot: Snapshot, bodies: Mapping[str, bytes], tiers: TierRecords, now: float
    ) -> tuple[list[Fault], Callable[[], None]]:
        """Return the faults of a snapshot, and what puts it in force if there are none."""
        if faults := self.stale(snapshot):
            return faults, lambda: None
        if snapshot.type == "quotas":
            quotas, faults = _records(snapshot, QuotaSpec, "tenant", _wrong_quota)
            return faults, lambda: self._apply_quotas(quotas, now)
        if snapshot.type == "policies":
            policies, faults = _records(snapshot, PolicySpec, "name", _wrong_policy)
            policy = next(iter(policies.values()), PolicySpec(POLICY_IN_FORCE))
            return faults, lambda: self.put_in_force(policy, now)
        if snapshot.type == "tiers":
            specs, faults = _records(snapshot, TierSpec, "name", lambda spec: wrong_in_tier(spec, tiers))
            faults = faults or [_fault(*wrong) for wrong in wrong_in_tiers(specs, tiers)]
            return faults, lambda: tiers.apply(list(specs.values()), now)
        known_bodies = {**self.bodies, **bodies}
        pins, faults = _records(snapshot, PinSpec, "name", _wrong_pin)
        faults = faults or [_fault(*wrong) for wrong in islice(_wrong_bodies(pins, known_bodies), MAX_FAULTS)]
        return faults, lambda: self._apply_pins(pins, known_bodies, now)

    # ---- quotas

    def _apply_quotas(self, specs: Mapping[int, QuotaSpec], now: float) -> None:
        pool = self.pool
        specs_left = {spec.tenant: spec for spec in specs.values()}
        before = pool.tenants.managed()
        moving, leaving = [], []
        for tenant in before:
            spec = specs_left.get(tenant.salt)
            if tenant.enforced and (spec is None or spec.mode != "enforce"):
                leaving.append(tenant)
            if spec is None:
                tenant.spec = tenant.rate = None
        for salt, spec in specs_left.items():
            tenant = pool.tenants.get(salt)
            if spec.mode == "enforce" and not tenant.enforced:
                moving.append(tenant)
            tenant.spec = spec
            if spec.store_rate_bytes is None:
                tenant.rate = None
            elif tenant.rate is None or tenant.rate.per_s != spec.store_rate_bytes:
                tenant.rate = Rate(spec.store_rate_bytes, float(spec.store_rate_bytes), now)
        pool.order.open(moving, leaving, pool.table.blocks.values(), now)
        self.share_out()
        pool.settle_pins({*before, *pool.tenants.managed()}, now)
        pool.pins.gpu_copies_changed = True  # budgets and weights apply to GPU copies as well
        self.settle(now)
        if pool.tiers is not None:
            pool.tiers.share_out()

    def share_out(self) -> None:
        """Set the limits, weights and effective floors of the accounts. Call again when the capacity changes."""
        pool = self.pool
        enforced = [tenant for tenant in pool.tenants.managed() if tenant.enforced]
        floors = effective_floors(
            {tenant.salt: tenant.spec.floor_bytes for tenant in enforced if tenant.spec is not None},
            pool.slabs.capacity_bytes,
        )
        for tenant in enforced:
            assert tenant.spec is not None
            account = tenant.account
            account.limit_bytes, account.weight = tenant.spec.limit_bytes, tenant.spec.weight
            account.floor_bytes = floors[tenant.salt]
            pool.order.ranking.changed(account)

    def settle(self, now: float) -> None:
        """Evict unleased blocks of tenants that are above their limit."""
        order = self.pool.order
        if order.alone:
            return
        over_limit = [tenant for tenant in self.pool.tenants.managed() if tenant.enforced and tenant.over_bytes]
        for tenant in over_limit:
            self.reclaimer.protect(frozenset())
            self.reclaimer.shrink_tenant(tenant, tenant.limit_bytes or 0, now)
        order.watch([tenant.account for tenant in over_limit if tenant.over_bytes])

    # ---- policies

    def put_in_force(self, spec: PolicySpec, now: float) -> None:
        """Change the eviction policy without dropping cached blocks."""
        pool = self.pool
        if spec.algorithm != self.policy.algorithm:
            pool.order.switch(POLICIES[spec.algorithm], pool.table.blocks.values(), now)
        if not spec.admission:
            pool.admission = None
        elif pool.admission is None:
            pool.admission = Admission(spec.admission_idle_s)
        else:
            pool.admission.idle_s = spec.admission_idle_s
        self.policy = spec

    # ---- pins

    def _apply_pins(self, specs: Mapping[int, PinSpec], bodies: Mapping[str, bytes], now: float) -> None:
        pins = self.pool.pins
        specs_left = {spec.name: spec for spec in specs.values()}
        touched: list[Pin] = []
        for pin in list(pins.by_name.values()):
            spec = specs_left.get(pin.name)
            if spec == pin.spec:
                del specs_left[pin.name]
                continue
            pins.remove(pin)
            touched.append(pin)
        keys_by_digest: dict[str, tuple[bytes, ...]] = {}
        for spec in specs_left.values():
            keys = keys_by_digest.get(spec.keys_digest)
            if keys is None:
                body = bodies[spec.keys_digest]
                keys = tuple(dict.fromkeys(split_keys(body)))
                keys_by_digest[spec.keys_digest] = keys
            pin = Pin(spec, keys, spec.expires_at)
            pins.add(pin)
            touched.append(pin)
        self._repin(touched, now)
        self.bodies = {spec.keys_digest: bodies[spec.keys_digest] for spec in specs.values()}
        self.expire_pins(now)

    def expire_pins(self, now: float) -> None:
        """Expire pins whose end has passed."""
        due = list(self.pool.pins.due(now))
        for pin in due:
            self.pool.pins.expire(pin)
            self.pool.emit(PinExpired(now, pin.name, shown(pin.tenant)))
        if due:
            self._repin(due, now)

    def _repin(self, pins: list[Pin], now: float) -> None:
        """Look up the blocks of changed pins again. Removed pins come first, to free their budget."""
        pool = self.pool
        for live in (False, True):
            # Pins of one tenant with the same keys cover the same blocks.
            chains: dict[str, dict[tuple[str, str], tuple[bytes, ...]]] = {}
            for pin in pins:
                if (pool.pins.by_name.get(pin.name) is pin and not pin.expired) is live:
                    chains.setdefault(pin.model, {})[pin.tenant, pin.spec.keys_digest] = pin.keys
            for model, of_model in chains.items():
                specs_left = [(salt, keys) for (salt, _), keys in of_model.items()]
                for space in pool.spaces.of_model(model):
                    use = pool.slabs.spaces.get(space)
                    if use is None or not use.slots:  # many spaces may be attached but never written to
                        continue
                    for blocks in self._ready_blocks(specs_left, space):
                        # The head gets budget first; unpinned blocks queue for eviction tail first, like any chain.
                        for block in blocks if live else reversed(blocks):
                            pool.repin(block, now)
                        if live:
                            pool.line_up_soft(blocks, now)
        pool.promote_pins(now)
        if pool.tiers is not None:
            pool.tiers.pins_changed(pins)

    def _ready_blocks(self, chains: Sequence[tuple[str, tuple[bytes, ...]]], space: int) -> Iterator[list[Block]]:
        """Yield, for each salt and chain, its READY blocks in a space that belong to that tenant.

        Many chains share one look-up.
        """
        first = 0
        while first < len(chains):
            last, count = first, 0
            while last < len(chains) and count < LOOKED_UP_TOGETHER:
                count += len(chains[last][1])
                last += 1
            batch = chains[first:last]
            first = last
            blocks = iter(self.pool.table.find(pack_keys([key for _, keys in batch for key in keys]), space))
            for salt, keys in batch:
                yield [
                    block
                    for block in islice(blocks, len(keys))
                    if block is not None and block.tenant.salt == salt and block.state is State.READY
                ]


def _wrong_bodies(specs: Mapping[int, PinSpec], bodies: Mapping[str, bytes]) -> Iterator[Wrong]:
    """Check the keys of pins, each body once; the keys of all pins together only if each is valid."""
    wrong = {digest: _wrong_body(digest, bodies) for digest in {spec.keys_digest for spec in specs.values()}}
    for number, spec in specs.items():
        if found := wrong[spec.keys_digest]:
            yield f"pins[{number}].keys_digest", *found
    if not any(wrong.values()):
        chains = {(spec.model, spec.tenant, spec.keys_digest) for spec in specs.values()}
        keys = sum(len(bodies[digest]) for _, _, digest in chains) // KEY_BYTES
        if keys > MAX_PINNED_KEYS:
            yield "pins", Code.TOO_MANY, f"expected at most {MAX_PINNED_KEYS} keys of pins, got {keys}"


def _wrong_body(digest: str, bodies: Mapping[str, bytes]) -> tuple[Code, str] | None:
    body = bodies.get(digest)
    if body is None:
        return Code.UNKNOWN_BODY, f"missing body for {digest}"
    if digest_of(body) != digest:
        return Code.BAD_DIGEST, "the body does not match its digest"
    if not body or len(body) % KEY_BYTES or len(body) > MAX_BODY_BYTES:
        message = f"expected 1 to {MAX_KEYS_PER_REQUEST} keys of {KEY_BYTES} bytes, got {len(body)} bytes"
        return Code.BAD_KEYS, message
    return None
