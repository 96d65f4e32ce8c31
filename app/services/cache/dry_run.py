"""Dry runs of records: each record is checked as in a put, merged into the desired state, and validated by the nodes,
but neither applied nor stored."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from app.errors import FieldError, Invalid
from app.ingest.fleet import FleetNode
from app.push.desired import DesiredState
from app.push.node_requests import NodeReply
from app.schemas.cache.actions import DryRunAnswer, DryRunFault, DryRunPost, Eviction, NodeVerdict
from app.schemas.records.pins import PinPut
from app.schemas.records.tiers import TierPut
from app.services.base import checks
from app.services.base.principals import Principal
from app.services.base.yielding import in_thread
from app.services.fleet.targets import Targets
from app.services.records import pins, policies, quotas, tiers
from app.services.records.prefixes import PrefixService
from app.services.records.progress import with_names
from app.services.records.record_types import Values
from app.services.records.tokenizers import Tokenizers
from dataplane.base import tracing
from dataplane.base.labels import matches
from dataplane.protocol.control.records import (
    POLICY_IN_FORCE,
    PinSpec,
    PolicySpec,
    QuotaSpec,
    encode_pins,
    encode_policies,
    encode_quotas,
    encode_tiers,
)
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, Ack, Nack, Snapshot, SnapshotType, digest_of
from dataplane.protocol.salts import shown
from dataplane.protocol.tiers import TierSpec

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
RECORDS_PER_PAUSE = 200
"""Number of records that are checked between pauses."""
Candidates = list[tuple[dict[str, str] | None, Any]]
"""Selector, and the record that matching nodes would receive."""


class DryRuns:
    def __init__(
        self, targets: Targets, desired: DesiredState, prefixes: PrefixService, tokenizers: Tokenizers
    ) -> None:
        self._targets = targets
        self._requests = targets.node_requests
        self._desired = desired
        self._prefixes = prefixes
        self._tokenizers = tokenizers

    async def run(self, request: DryRunPost, by: Principal) -> DryRunAnswer:
        """Return the verdict of each node. Raises Invalid, Forbidden, NodeUnreachable."""
        by.check_whole("a dry run")
        candidates: dict[SnapshotType, Candidates] = {}
        bodies: dict[str, bytes] = {}
        for number, (name, quota) in enumerate((request.quotas or {}).items(), 1):
            if number % RECORDS_PER_PAUSE == 0:
                await asyncio.sleep(0)  # give other requests a turn, and notice a disconnected client
            intent = _with_path(f"quotas.{name}", lambda: quotas.resolve(name, quota))  # noqa: B023 - called at once
            candidates.setdefault("quotas", []).append((intent["selector"], _spec(QuotaSpec, intent)))
        for name, policy in (request.policies or {}).items():
            rules = _with_path(f"policies.{name}", lambda: policies.resolve(name, policy))  # noqa: B023 - called at once
            spec = msgspec.structs.replace(_spec(PolicySpec, rules), name=POLICY_IN_FORCE)
            candidates.setdefault("policies", []).append((rules["selector"], spec))
        for name, tier in (request.tiers or {}).items():
            spec_of = _with_path(f"tiers.{name}", lambda: _tier(name, tier))  # noqa: B023 - called at once
            candidates.setdefault("tiers", []).append(spec_of)
        for name, pin in (request.pins or {}).items():
            candidates.setdefault("pins", []).append(await self._pin(name, pin, bodies, by))
        if not candidates:
            raise Invalid.at("quotas", f"expected at least one of {', '.join(SNAPSHOT_TYPES)}")
        nodes = self._targets.selected(request)
        disconnected = set() if request.node or request.nodes else {node.name for node in nodes if not node.welcomed}
        await self._desired.refresh()
        items: list[NodeVerdict] = []
        for kind, records in candidates.items():
            replies = await self._requests.each(nodes, partial(self.validated, kind, records, bodies))
            items += [self._verdict(kind, records, reply) for reply in replies]
        items.sort(key=lambda item: (item.node, item.type))
        accepted = all(item.accepted or item.node in disconnected for item in items)
        return DryRunAnswer(items, len(items), accepted)

    async def _pin(
        self, name: str, pin: PinPut, bodies: dict[str, bytes], by: Principal
    ) -> tuple[dict[str, str] | None, PinSpec]:
        path = f"pins.{name}"

        def check() -> None:
            faults = checks.Faults()
            checks.pin_name(name)
            pins.check_sources(pin, faults)
            faults.stop()

        _with_path(path, check)
        prefix = None if pin.prefix is None else await self._prefixes.keys(pin.prefix, by)
        encoded = await self._tokenizers.encoded(pin, by)
        now = time.time()
        values, body = await in_thread(_with_path, path, lambda: pins.resolve(pin, prefix, now, encoded))
        bodies[values["keys_digest"]] = body
        return values["selector"], _spec(PinSpec, {"name": name, **values})

    async def validated(
        self, kind: SnapshotType, records: Candidates, bodies: Mapping[str, bytes], node: FleetNode
    ) -> Ack | Nack:
        """Return a node's verdict on its desired snapshot with the records merged into it."""
        specs = [spec for selector, spec in records if matches(node.labels, selector)]
        built = self._desired.built(kind, node.labels)
        body = _merged(kind, built.body, specs)
        desired = built.desired
        snapshot = Snapshot(
            kind,
            self._desired.store,
            desired.generation + 1,
            "",
            digest_of(body),
            body,
            traceparent=tracing.traceparent(),
        )

        async def fetch(digests: list[str]) -> dict[str, bytes]:
            stored = await self._desired.bodies(digests)
            return stored | {digest: bodies[digest] for digest in digests if digest in bodies}

        return await self._requests.try_out(node, snapshot, fetch)

    def _verdict(self, kind: SnapshotType, records: Candidates, reply: NodeReply[Ack | Nack]) -> NodeVerdict:
        answer, node = reply.answer, reply.node
        errors = answer.errors if isinstance(answer, Nack) else []
        specs = [spec for selector, spec in records if matches(node.labels, selector)]
        if kind == "tiers" and errors:
            tier_names = {spec.name for spec in specs}
            errors = with_names(errors, sorted(tier_names.union(self._desired.names(kind, node.labels))))
        faults = [DryRunFault(fault.path, fault.code, fault.message) for fault in errors]
        evictions = _evictions(node, specs) if kind == "quotas" and isinstance(answer, Ack) else []
        return NodeVerdict(node.name, kind, bool(specs), isinstance(answer, Ack), faults, reply.error, evictions)


def _evictions(node: FleetNode, quotas: Sequence[QuotaSpec]) -> list[Eviction]:
    """Return what the node would evict at once: what tenants hold above their limit, without what pins keep."""
    stats = node.live_stats
    if stats is None:
        return []
    tenants = {tenant.tenant: tenant for tenant in stats.tenants}
    in_tiers = {(tier.name, tenant.tenant): tenant.bytes for tier in stats.tiers for tenant in tier.tenants}
    evictions: list[Eviction] = []
    for quota in quotas:
        if quota.mode != "enforce":
            continue
        name = shown(quota.tenant)
        tenant = tenants.get(name)
        if tenant is not None and quota.limit_bytes is not None:
            allowed = max(quota.limit_bytes, tenant.pinned_bytes)
            evictions.append(Eviction(name, "", tenant.bytes - allowed))
        for tier, share in quota.tiers.items():
            if share.limit_bytes is not None:
                evictions.append(Eviction(name, tier, in_tiers.get((tier, name), 0) - share.limit_bytes))
    return [eviction for eviction in evictions if eviction.bytes > 0]


def _spec(kind: type[S], values: Values) -> S:
    """Return the part of a record that nodes receive."""
    return msgspec.convert({name: values[name] for name in kind.__struct_fields__}, kind)


def _with_path(path: str, rule: Callable[[], T]) -> T:
    """Return the result of `rule`; prefix the paths of its errors with a record's path. Raises Invalid."""
    try:
        return rule()
    except Invalid as error:
        errors = [FieldError(f"{path}.{field_error.path}", field_error.message) for field_error in error.errors]
        raise Invalid(f"{path}: {error.message}", errors) from None


def _tier(name: str, tier: TierPut) -> tuple[dict[str, str] | None, TierSpec]:
    values = tiers.resolve(checks.pin_name(name), tier)
    return values["selector"], _spec(TierSpec, values)


def _merged(kind: SnapshotType, body: bytes, records: Sequence[Any]) -> bytes:
    """Return the body of a snapshot with the records in it. A node has one policy: the last one."""
    if kind == "policies":
        return encode_policies(list(records[-1:])) if records else body
    key, decoder, encode = _FORMATS[kind]
    current = {getattr(record, key): record for record in decoder.decode(body)}
    return encode(list((current | {getattr(record, key): record for record in records}).values()))


_FORMATS: dict[SnapshotType, tuple[str, msgspec.msgpack.Decoder[Any], Callable[[list[Any]], bytes]]] = {
    "quotas": ("tenant", msgspec.msgpack.Decoder(list[QuotaSpec]), encode_quotas),
    "pins": ("name", msgspec.msgpack.Decoder(list[PinSpec]), encode_pins),
    "tiers": ("name", msgspec.msgpack.Decoder(list[TierSpec]), encode_tiers),
}
