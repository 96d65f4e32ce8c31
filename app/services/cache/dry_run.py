"""Dry runs of records: each record is checked as in a put, merged into the desired state, and validated by the nodes,
but neither applied nor stored."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from app.errors import FieldError, Invalid
from app.ingest.fleet import FleetNode
from app.push.desired import DesiredRecord, DesiredState
from app.push.node_requests import NodeReply
from app.schemas.cache.actions import DryRunAnswer, DryRunFault, DryRunPost, Eviction, NodeVerdict
from app.schemas.records.pins import PinPut
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
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, Ack, Nack, Snapshot, SnapshotType, digest_of
from dataplane.protocol.salts import shown

RECORDS_PER_PAUSE = 200
"""Number of records that are checked between pauses."""
_TYPES: tuple[SnapshotType, ...] = ("quotas", "policies", "tiers", "pins")
_RULES: dict[SnapshotType, Callable[[str, Any], Values]] = {
    "quotas": quotas.resolve,
    "policies": policies.resolve,
    "tiers": lambda name, tier: tiers.resolve(checks.pin_name(name), tier),
}
"""The rules of a record, given its name and the body of its PUT. Those of pins need requests to nodes."""


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
        candidates: dict[SnapshotType, list[DesiredRecord]] = {}
        bodies: dict[str, bytes] = {}
        for kind in _TYPES:
            for number, (name, put) in enumerate((getattr(request, kind) or {}).items(), 1):
                if number % RECORDS_PER_PAUSE == 0:
                    await asyncio.sleep(0)  # give other requests a turn, and notice a disconnected client
                if kind == "pins":
                    values = await self._pin(name, put, bodies, by)
                else:
                    with _below(f"{kind}.{name}"):
                        values = _RULES[kind](name, put)
                candidates.setdefault(kind, []).append(DesiredRecord.of(kind, values))
        if not candidates:
            raise Invalid.at("quotas", f"expected at least one of {', '.join(SNAPSHOT_TYPES)}")
        nodes = self._targets.selected(request)
        disconnected = set() if request.node or request.nodes else {node.name for node in nodes if not node.welcomed}
        await self._desired.refresh()
        items: list[NodeVerdict] = []
        for kind, records in candidates.items():
            replies = await self._requests.each(nodes, partial(self._validated, kind, records, bodies))
            items += [self._verdict(kind, records, reply) for reply in replies]
        items.sort(key=lambda item: (item.node, item.type))
        accepted = all(item.accepted or item.node in disconnected for item in items)
        return DryRunAnswer(items, len(items), accepted)

    async def _pin(self, name: str, pin: PinPut, bodies: dict[str, bytes], by: Principal) -> Values:
        """Return the columns of a checked pin, and add its keys to `bodies`. Raises Invalid, NodeUnreachable,
        TooManyRequests."""
        path = f"pins.{name}"
        with _below(path):
            faults = checks.Faults()
            checks.pin_name(name)
            pins.check_sources(pin, faults)
            faults.stop()
        prefix = None if pin.prefix is None else await self._prefixes.keys(pin.prefix, by)
        encoded = await self._tokenizers.encoded(pin, by)
        with _below(path):
            values, body = await in_thread(pins.resolve, pin, prefix, time.time(), encoded)
        bodies[values["keys_digest"]] = body
        return {"name": name, **values}

    async def _validated(
        self, kind: SnapshotType, records: Sequence[DesiredRecord], bodies: Mapping[str, bytes], node: FleetNode
    ) -> Ack | Nack:
        """Return a node's verdict on its desired snapshot with the records merged into it."""
        body = self._desired.body_with(kind, node.labels, _of(node, records))
        generation = self._desired.generations[kind] + 1
        traceparent = tracing.traceparent()
        snapshot = Snapshot(kind, self._desired.store, generation, "", digest_of(body), body, traceparent=traceparent)

        async def fetch(digests: list[str]) -> dict[str, bytes]:
            stored = await self._desired.bodies(digests)
            return stored | {digest: bodies[digest] for digest in digests if digest in bodies}

        return await self._requests.try_out(node, snapshot, fetch)

    def _verdict(
        self, kind: SnapshotType, records: Sequence[DesiredRecord], reply: NodeReply[Ack | Nack]
    ) -> NodeVerdict:
        answer, node = reply.answer, reply.node
        errors = answer.errors if isinstance(answer, Nack) else []
        specs = [record.spec for record in _of(node, records)]
        if kind == "tiers" and errors:
            tier_names = {spec.name for spec in specs}
            errors = with_names(errors, sorted(tier_names.union(self._desired.names(kind, node.labels))))
        faults = [DryRunFault(fault.path, fault.code, fault.message) for fault in errors]
        evictions = _evictions(node, specs) if kind == "quotas" and isinstance(answer, Ack) else []
        return NodeVerdict(node.name, kind, bool(specs), isinstance(answer, Ack), faults, reply.error, evictions)


def _evictions(node: FleetNode, specs: Sequence[QuotaSpec]) -> list[Eviction]:
    """Return what the node would evict at once: what tenants hold above their limit, without what pins keep."""
    stats = node.live_stats
    if stats is None:
        return []
    tenants = {tenant.tenant: tenant for tenant in stats.tenants}
    in_tiers = {(tier.name, tenant.tenant): tenant.bytes for tier in stats.tiers for tenant in tier.tenants}
    evictions: list[Eviction] = []
    for quota in specs:
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


def _of(node: FleetNode, records: Sequence[DesiredRecord]) -> list[DesiredRecord]:
    """Return the records that a node would receive."""
    return [record for record in records if matches(node.labels, record.selector)]


@contextmanager
def _below(path: str) -> Iterator[None]:
    """Prefix the paths of errors with a record's path. Raises Invalid."""
    try:
        yield
    except Invalid as error:
        errors = [FieldError(f"{path}.{field_error.path}", field_error.message) for field_error in error.errors]
        raise Invalid(f"{path}: {error.message}", errors) from None
