"""Conditions of a record: accepted here, applied on its nodes, effective there. Pure: reads only what nodes reported.

A record can be applied and yet have no effect: a tenant is over its limit until leases end, a node's pool is too small
for the floors, a pin does not fit the budgets, holds no block or has no GPU copies, a tier is out of service, a node is
not armed, or another policy comes first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.ingest.fleet import FleetNode
from app.push.states import NodeState
from app.schemas.base.status import Condition, ConditionStatus, ConditionType
from dataplane.base.units import format_size
from dataplane.protocol.control.snapshots import Fault, SnapshotType
from dataplane.protocol.stats.tenants import TenantStats

NO_GPU_COPY_POOL = "no_gpu_copy_pool"
EMPTY = "empty"


@dataclass(frozen=True)
class RecordState:
    """A record whose conditions are computed."""

    kind: SnapshotType
    name: str
    """Name that nodes use for the record."""
    generation: int
    """Generation of the last change."""
    since: float
    """Unix seconds of the last change."""


def accepted(record: RecordState) -> Condition:
    return Condition("Accepted", "True", "Committed", f"generation {record.generation} of {record.kind}", record.since)


def applied_on(
    node: FleetNode, record: RecordState, state: NodeState, is_applied: bool, faults: Sequence[Fault], *, whole: bool
) -> Condition:
    """Return the condition `Applied` of a record on a node, with the reason if it is not applied. The first of the
    `faults` of a refusal may be in another tenant's record, so the message contains it only if the caller may see the
    `whole`."""
    if is_applied:
        at = next((at for number, at in node.acks(record.kind) if number >= record.generation), record.since)
        return Condition("Applied", "True", "Applied", f"{node.name} has applied it", at)
    if state is NodeState.LOST:
        return Condition("Applied", "Unknown", "NodeLost", f"{node.name} is silent", node.seen_at)
    if state is NodeState.JOINING:
        return Condition("Applied", "False", "Joining", f"{node.name} has not connected yet", record.since)
    if record.kind not in node.snapshot_types:
        message = f"the release of {node.name} does not support {record.kind}"
        return Condition("Applied", "False", "Unsupported", message, record.since)
    refusal = node.refused.get(record.kind)
    if state is NodeState.NACKED and refusal is not None:
        first = faults[0] if faults and whole else None
        reason = "" if first is None else f": {first.path}: {first.message}"
        return Condition(
            "Applied", "False", "Refused", f"{node.name} refused generation {refusal.generation}{reason}", refusal.at
        )
    return Condition("Applied", "False", "Waiting", f"{node.name} has not applied it yet", record.since)


def effective_on(
    node: FleetNode,
    record: RecordState,
    applied: Condition,
    policy: str | None,
    *,
    gpu_copies_elsewhere: bool,
    resident_elsewhere: bool,
    whole: bool,
) -> Condition:
    """Return the condition `Effective` of a record on a node. `policy` is the name of the policy that is in force
    there. A node without GPU copies lacks nothing where another node of the record has them: not every machine has
    GPUs. The same holds for a node without blocks of a pin: not every engine reads every prefix. The message contains
    problems with the node's GPUs if the caller may see the `whole`."""
    if applied.status != "True":
        return _effective(applied.status, applied.reason, applied.message, applied.since)
    if node.stats is None:
        return _effective("Unknown", "NotTold", f"{node.name} has not reported its state yet", applied.since)
    for kind, name, reason, message in (
        ("unarmed", "", "Unarmed", f"{node.name} does not enforce yet: it has no snapshot of quotas"),
        *_obstacles(node, record, whole),
    ):
        if (kind == NO_GPU_COPY_POOL and gpu_copies_elsewhere) or (kind == EMPTY and resident_elsewhere):
            continue
        since = node.since.get((kind, name))
        if since is not None:
            return _effective("False", reason, message, max(since, applied.since))
    if record.kind == "tiers" and all(tier.name != record.name for tier in node.stats.tiers):
        return _effective("Unknown", "NotTold", f"{node.name} has not reported the tier yet", applied.since)
    if record.kind == "policies" and policy != record.name:
        return _effective("False", "Overruled", f"policy {policy!r} comes first on {node.name}", applied.since)
    return _effective("True", "Effective", f"in force on {node.name}", applied.since)


def _obstacles(node: FleetNode, record: RecordState, whole: bool) -> Sequence[tuple[str, str, str, str]]:
    if record.kind == "quotas":
        message = f"{record.name} holds more than its limit on {node.name} until leases end"
        obstacles = [("over_limit", record.name, "OverLimit", message)]
        if ("floor_reduced", record.name) in node.since:
            obstacles.append(("floor_reduced", record.name, "FloorReduced", _reduced(node, record.name)))
        return obstacles
    if record.kind == "pins":
        outside_budget = f"blocks of {record.name} are outside the pin budgets of {node.name}: kept as under a soft pin"
        few_gpu_copies = (
            f"not all resident blocks of {record.name} have a GPU copy on each GPU of {node.name} whose engines read "
            "them: the others are read from the node's pool"
        )
        return [
            ("expired", record.name, "Expired", f"it has expired on {node.name}"),
            ("degraded", record.name, "OutsideBudget", outside_budget),
            (NO_GPU_COPY_POOL, record.name, "NoGpuCopyPool", _no_gpu_copies(node, whole)),
            (EMPTY, record.name, "HoldsNothing", _holds_nothing(node, record.name)),
            ("lacks_gpu_copies", record.name, "FewGpuCopies", few_gpu_copies),
        ]
    if record.kind == "tiers":
        return [("out_of_service", record.name, "OutOfService", _out_of_service(node, record.name))]
    return []


def _out_of_service(node: FleetNode, name: str) -> str:
    tiers = () if node.stats is None else node.stats.tiers
    tier = next((tier for tier in tiers if tier.name == name and not tier.serves), None)
    if tier is None:
        return f"it is not in service on {node.name}"
    if tier.state == "opening":
        return f"it is being opened on {node.name}"
    # Nodes of older releases report no state of tiers.
    state = tier.state if tier.state != "in service" else "out of service"
    return f"it is {state} on {node.name}{f': {tier.reason}' if tier.reason else ''}"


def _no_gpu_copies(node: FleetNode, whole: bool) -> str:
    stats = node.stats
    if stats is None or stats.gpu_copy_pool_bytes == 0:
        reason = "gpu_pool_bytes is 0 there"
    elif not stats.gpu_copy_pools:
        reason = "no engine on a GPU has requested any"
    elif whole:
        reason = next((pool.problem for pool in stats.gpu_copy_pools if pool.problem), "no reason was reported")
    else:
        reason = "none of them can keep any"
    return f"no GPU of {node.name} keeps GPU copies: {reason}; blocks are read from the node's pool"


def _holds_nothing(node: FleetNode, name: str) -> str:
    blocks = node.pins[name].resolved if name in node.pins else 0
    if blocks == 1:
        return f"its only block is not cached on {node.name}; it is kept as soon as an engine stores it"
    return f"none of its {blocks:,} blocks is cached on {node.name}; they are kept as soon as an engine stores them"


def _reduced(node: FleetNode, tenant: str) -> str:
    tenants = () if node.stats is None else node.stats.tenants
    floors = next(
        (_floors(tenant_stats) for tenant_stats in tenants if tenant_stats.tenant == tenant), "less than its floor"
    )
    return f"{node.name} guarantees {floors}: its pool is too small"


def _floors(tenant: TenantStats) -> str:
    return f"{format_size(tenant.effective_floor_bytes)} of the floor of {format_size(tenant.floor_bytes)}"


def _effective(status: ConditionStatus, reason: str, message: str, since: float) -> Condition:
    return Condition("Effective", status, reason, message, since)


def no_node(selector: Mapping[str, str] | None, selected: Sequence[FleetNode]) -> str:
    """Return why no node that is not lost applies a record, given the nodes that it selects."""
    if selected:
        return "no node that it selects is connected"
    if selector is None:
        return "no node is connected"
    return f"no node matches the selector {','.join(f'{key}={value}' for key, value in selector.items())}"


def over_all(
    record: RecordState, living: Sequence[tuple[str, Sequence[Condition]]], no_node_message: str
) -> list[Condition]:
    """Return `Applied` and `Effective` over the nodes that are not lost, each given as (name, its two conditions).
    `no_node_message` is the message if there are none."""
    if not living:
        return [
            Condition("Applied", "False", "NoNode", no_node_message, record.since),
            Condition("Effective", "False", "NoNode", no_node_message, record.since),
        ]
    return [
        _sum("Applied", [conditions[0] for _, conditions in living]),
        _sum("Effective", [conditions[1] for _, conditions in living]),
    ]


def _sum(kind: ConditionType, conditions: Sequence[Condition]) -> Condition:
    """Return one condition for all nodes: true if it is true on each; else the oldest obstacle, and the number of nodes
    where it is true."""
    obstacles = sorted(
        (condition for condition in conditions if condition.status != "True"),
        key=lambda condition: (condition.status, condition.since),
    )
    if not obstacles:
        return Condition(
            kind,
            "True",
            kind,
            f"on {len(conditions)} of {len(conditions)} nodes",
            max(condition.since for condition in conditions),
        )
    first = obstacles[0]
    true_count = len(conditions) - len(obstacles)
    return Condition(
        kind, first.status, first.reason, f"on {true_count} of {len(conditions)} nodes; {first.message}", first.since
    )
