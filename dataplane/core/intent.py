"""Snapshots of the management plane: validate all, apply all or nothing, remember what is in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeVar

import msgspec

from dataplane.core.pins import Pin
from dataplane.core.pool import Pool
from dataplane.protocol.codec import split_path
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control import (
    MAX_RECORDS,
    Fault,
    Observed,
    PinSpec,
    QuotaSpec,
    Snapshot,
    SnapshotType,
    digest_of,
)
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.events import PinExpired
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.salts import check_salt
from dataplane.protocol.spaces import MAX_NAME_CHARACTERS
from dataplane.protocol.states import State
from dataplane.protocol.units import MAX_SIZE_BYTES

S = TypeVar("S", QuotaSpec, PinSpec)
MAX_FAULTS = 100
MAX_PINNED_KEYS = 1_000_000
MAX_BODY_BYTES = MAX_KEYS_PER_REQUEST * KEY_BYTES


def _fault(path: str, code: Code, message: str) -> Fault:
    return Fault(path, code.name.lower(), message)


def _records(
    snapshot: Snapshot, kind: type[S], check: Callable[[str, S], list[Fault]]
) -> tuple[dict[int, S], list[Fault]]:
    """Every record of a body that can be read, by its position, and every fault found (at most 100)."""
    if digest_of(snapshot.body) != snapshot.digest:
        return {}, [_fault("digest", Code.BAD_DIGEST, "the body does not match its digest")]
    try:
        raws = msgspec.msgpack.decode(snapshot.body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return {}, [_fault(snapshot.type, Code.MALFORMED, str(error))]
    if len(raws) > MAX_RECORDS:
        return {}, [
            _fault(snapshot.type, Code.TOO_MANY, f"expected at most {MAX_RECORDS} records, got {len(raws)}")
        ]
    decoder = msgspec.msgpack.Decoder(kind)
    records: dict[int, S] = {}
    faults: list[Fault] = []
    for number, raw in enumerate(raws):
        path = f"{snapshot.type}[{number}]"
        try:
            record = decoder.decode(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            below, message = split_path(str(error))
            faults.append(_fault(f"{path}.{below}" if below else path, Code.BAD_FIELD, message))
        else:
            faults += check(path, record)
            records[number] = record
        if len(faults) >= MAX_FAULTS:
            break
    return records, faults[:MAX_FAULTS]


def _check_quota(path: str, spec: QuotaSpec) -> list[Fault]:
    faults = _check_tenant(path, spec.tenant)
    if spec.limit_bytes is not None and not 0 <= spec.limit_bytes <= MAX_SIZE_BYTES:
        message = f"expected 0 to {MAX_SIZE_BYTES}, got {spec.limit_bytes}"
        faults.append(_fault(f"{path}.limit_bytes", Code.BAD_FIELD, message))
    return faults


def _check_pin(path: str, spec: PinSpec) -> list[Fault]:
    faults = _check_tenant(path, spec.tenant)
    for name in ("name", "model"):
        text = getattr(spec, name)
        if not text or len(text) > MAX_NAME_CHARACTERS or not text.isprintable():
            message = f"expected 1 to {MAX_NAME_CHARACTERS} printable characters"
            faults.append(_fault(f"{path}.{name}", Code.BAD_FIELD, message))
    if spec.expires_at is not None and not isfinite(spec.expires_at):
        message = f"expected Unix seconds, got {spec.expires_at}"
        faults.append(_fault(f"{path}.expires_at", Code.BAD_FIELD, message))
    if len(spec.keys_digest) != 64 or not set(spec.keys_digest) <= set("0123456789abcdef"):
        faults.append(_fault(f"{path}.keys_digest", Code.BAD_FIELD, "expected 64 hex digits"))
    return faults


def _check_tenant(path: str, salt: str) -> list[Fault]:
    try:
        check_salt(salt)
    except ProtocolError as error:
        return [_fault(f"{path}.tenant", error.code, error.message)]
    return []


def _duplicates(kind: SnapshotType, name: str, records: Mapping[int, QuotaSpec | PinSpec]) -> list[Fault]:
    seen: set[str] = set()
    faults = []
    for number, record in records.items():
        value = getattr(record, name)
        if value in seen:
            faults.append(_fault(f"{kind}[{number}].{name}", Code.DUPLICATE, f"{value!r} stands in it twice"))
        seen.add(value)
    return faults


@dataclass(slots=True)
class Intent:
    """What the management plane wants, as far as this node has applied it."""

    pool: Pool
    observed: dict[SnapshotType, Observed] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    """Pin bodies in force, by digest."""

    @property
    def armed(self) -> bool:
        """A quotas snapshot is in force; before that no limit binds."""
        return "quotas" in self.observed

    def stale(self, snapshot: Snapshot) -> list[Fault]:
        """A fault when a newer generation of the same database is in force."""
        held = self.observed.get(snapshot.type)
        if held is None or held.store != snapshot.store or snapshot.generation >= held.generation:
            return []
        message = f"generation {held.generation} is in force, got {snapshot.generation}"
        return [_fault("generation", Code.STALE_GENERATION, message)]

    def needed_bodies(self, snapshot: Snapshot) -> list[str]:
        """Digests of pin bodies that this node lacks; empty when the snapshot is wrong (apply tells)."""
        if snapshot.type != "pins" or self.stale(snapshot):
            return []
        specs, faults = _records(snapshot, PinSpec, _check_pin)
        if faults:
            return []
        return sorted({spec.keys_digest for spec in specs.values()} - self.bodies.keys())

    def apply(self, snapshot: Snapshot, bodies: Mapping[str, bytes], now: float) -> list[Fault]:
        """Apply a snapshot, or return every fault and change nothing."""
        faults = self.stale(snapshot)
        if faults:
            return faults
        if snapshot.type == "quotas":
            faults = self._apply_quotas(snapshot, now)
        else:
            faults = self._apply_pins(snapshot, bodies, now)
        if not faults:
            self.observed[snapshot.type] = Observed(snapshot.generation, snapshot.digest, snapshot.store)
        return faults

    # ---- quotas

    def _apply_quotas(self, snapshot: Snapshot, now: float) -> list[Fault]:
        specs, faults = _records(snapshot, QuotaSpec, _check_quota)
        faults += _duplicates("quotas", "tenant", specs)
        if faults:
            return faults[:MAX_FAULTS]
        wanted = {spec.tenant: spec for spec in specs.values()}
        for salt, tenant in self.pool.tenants.by_salt.items():
            if salt not in wanted:
                tenant.managed, tenant.limit_bytes, tenant.order = False, None, None
        for salt, spec in wanted.items():
            tenant = self.pool.tenants.get(salt)
            tenant.managed, tenant.limit_bytes = True, spec.limit_bytes
            if spec.limit_bytes is None:
                tenant.order = None
            elif tenant.order is None:
                self.pool.order.split(tenant, self.pool.table.blocks, now)
        self.settle(now)
        return []

    def settle(self, now: float) -> None:
        """Evict what no lease holds of tenants above their limit."""
        for tenant in self.pool.tenants.limited():
            if tenant.over_bytes:
                self.pool.spare(())
                self.pool.shrink_tenant(tenant, tenant.limit_bytes or 0, now)

    # ---- pins

    def _apply_pins(self, snapshot: Snapshot, bodies: Mapping[str, bytes], now: float) -> list[Fault]:
        specs, faults = _records(snapshot, PinSpec, _check_pin)
        faults += _duplicates("pins", "name", specs)
        held = {**self.bodies, **bodies}
        if not faults:
            faults = [fault for number, spec in specs.items() for fault in _check_body(number, spec, held)]
        if faults:
            return faults[:MAX_FAULTS]
        pins = self.pool.pins
        wanted = {spec.name: spec for spec in specs.values()}
        touched: list[Pin] = []
        for pin in list(pins.by_name.values()):
            spec = wanted.get(pin.name)
            if spec is not None and (pin.model, pin.digest, pin.expires_at) == (
                spec.model,
                spec.keys_digest,
                spec.expires_at,
            ):
                del wanted[pin.name]
                continue
            pins.remove(pin)
            touched.append(pin)
        for spec in wanted.values():
            body = held[spec.keys_digest]
            keys = tuple(dict.fromkeys(body[at : at + KEY_BYTES] for at in range(0, len(body), KEY_BYTES)))
            pin = Pin(spec.name, spec.model, spec.keys_digest, keys, spec.expires_at)
            pins.add(pin)
            touched.append(pin)
        self._repin(touched, now)
        self.bodies = {spec.keys_digest: held[spec.keys_digest] for spec in specs.values()}
        self.expire_pins(now)
        return []

    def expire_pins(self, now: float) -> None:
        """End pins whose time is over."""
        due = list(self.pool.pins.due(now))
        for pin in due:
            self.pool.pins.expire(pin)
            self.pool.emit(PinExpired(now, pin.name))
        if due:
            self._repin(due, now)

    def _repin(self, pins: list[Pin], now: float) -> None:
        """Look the blocks of changed pins up again; those that lose a mark first, so that their budget is free."""
        pool = self.pool
        for live in (False, True):
            seen: set[tuple[str, str]] = set()  # pins of the same keys mean the same blocks
            for pin in pins:
                if (pool.pins.by_name.get(pin.name) is pin and not pin.expired) is not live:
                    continue
                if (pin.model, pin.digest) in seen:
                    continue
                seen.add((pin.model, pin.digest))
                words = pack_keys(pin.keys)
                for space in pool.spaces.of_model(pin.model):
                    found = pool.table.find(words, space)
                    # The head gets budget first; what loses a mark joins the order tail first, like any chain.
                    for block in found if live else reversed(found):
                        if block is not None and block.state is State.READY:
                            pool.repin(block, now)
        pool.promote_pins()


def _check_body(number: int, spec: PinSpec, held: Mapping[str, bytes]) -> list[Fault]:
    path = f"pins[{number}].keys_digest"
    body = held.get(spec.keys_digest)
    if body is None:
        return [_fault(path, Code.UNKNOWN_BODY, f"no body came for {spec.keys_digest}")]
    if digest_of(body) != spec.keys_digest:
        return [_fault(path, Code.BAD_DIGEST, "the body does not match its digest")]
    if not body or len(body) % KEY_BYTES or len(body) > MAX_BODY_BYTES:
        message = f"expected 1 to {MAX_KEYS_PER_REQUEST} keys of {KEY_BYTES} bytes, got {len(body)} bytes"
        return [_fault(path, Code.BAD_KEYS, message)]
    return []
