"""What is true of a record: accepted here, applied on its nodes, effective there. Pure: reads what nodes told.

A record can be applied and yet have no effect: a tenant is over its limit until leases end, a node's pool is too
small for the floors, a pin does not fit the budgets or has no replicas on GPUs, a node is not armed, another policy
comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.ingest.fleet import Node
from app.push.states import NodeState
from app.schemas.status import Condition, ConditionStatus, ConditionType
from dataplane.protocol.control import SnapshotType
from dataplane.protocol.events import TenantStats
from dataplane.protocol.units import format_size

NO_REPLICA_POOL = "no_replica_pool"


@dataclass(frozen=True)
class Record:
    """What conditions are about."""

    kind: SnapshotType
    name: str
    """As nodes call it."""
    generation: int
    """That last changed it."""
    since: float
    """Unix seconds of that change."""


def accepted(record: Record) -> Condition:
    return Condition(
        "Accepted", "True", "Committed", f"generation {record.generation} of {record.kind}", record.since
    )


def applied_on(
    node: Node, record: Record, state: NodeState, is_applied: bool, *, whole: bool = True
) -> Condition:
    """Whether a node has applied the record, and if not, why. The fault for which it refused may be in a record of
    another tenant: it is told when the caller may see the `whole`."""
    if is_applied:
        at = next((at for number, at in node.acks(record.kind) if number >= record.generation), record.since)
        return Condition("Applied", "True", "Applied", f"{node.name} has applied it", at)
    if state is NodeState.LOST:
        return Condition("Applied", "Unknown", "NodeLost", f"{node.name} is silent", node.seen_at)
    if state is NodeState.JOINING:
        return Condition("Applied", "False", "Joining", f"{node.name} has not said hello yet", record.since)
    refusal = node.refused.get(record.kind)
    if state is NodeState.NACKED and refusal is not None:
        first = refusal.faults[0] if refusal.faults and whole else None
        why = "" if first is None else f": {first.path}: {first.message}"
        return Condition(
            "Applied",
            "False",
            "Refused",
            f"{node.name} refused generation {refusal.generation}{why}",
            refusal.at,
        )
    return Condition("Applied", "False", "Waiting", f"{node.name} has not applied it yet", record.since)


def effective_on(
    node: Node,
    record: Record,
    applied: Condition,
    policy: str | None,
    *,
    replicas_elsewhere: bool = False,
    whole: bool = True,
) -> Condition:
    """Whether a record does on a node what it says. `policy` is the name of the one that is in force there. A node
    without replicas lacks nothing where another one that the record is for has them: not every machine has GPUs. What
    is the matter with its GPUs is told when the caller may see the `whole`."""
    if applied.status != "True":
        return _effective(applied.status, applied.reason, applied.message, applied.since)
    if node.stats is None:
        return _effective("Unknown", "NotTold", f"{node.name} has not told its state yet", applied.since)
    for what, name, reason, message in (
        ("unarmed", "", "Unarmed", f"{node.name} does not enforce yet: it has no snapshot of quotas"),
        *_obstacles(node, record, whole),
    ):
        if what == NO_REPLICA_POOL and replicas_elsewhere:
            continue
        since = node.since.get((what, name))
        if since is not None:
            return _effective("False", reason, message, max(since, applied.since))
    if record.kind == "policies" and policy != record.name:
        return _effective(
            "False", "Overruled", f"policy {policy!r} comes first on {node.name}", applied.since
        )
    return _effective("True", "Effective", f"in force on {node.name}", applied.since)


def _obstacles(node: Node, record: Record, whole: bool) -> Sequence[tuple[str, str, str, str]]:
    if record.kind == "quotas":
        message = f"{record.name} holds more than its limit on {node.name} until leases end"
        found = [("over_limit", record.name, "OverLimit", message)]
        if ("floor_reduced", record.name) in node.since:
            found.append(("floor_reduced", record.name, "FloorReduced", _reduced(node, record.name)))
        return found
    if record.kind == "pins":
        outside = (
            f"blocks of {record.name} are outside the pin budgets of {node.name}: kept as under a soft pin"
        )
        few = (
            f"not all resident blocks of {record.name} have a replica on each GPU of {node.name} whose engines read "
            "them: the others are read from the node's pool"
        )
        return [
            ("expired", record.name, "Expired", f"its end is over on {node.name}"),
            ("degraded", record.name, "OutsideBudget", outside),
            (NO_REPLICA_POOL, record.name, "NoReplicaPool", _nowhere(node, whole)),
            ("unreplicated", record.name, "FewReplicas", few),
        ]
    return []


def _nowhere(node: Node, whole: bool) -> str:
    stats = node.stats
    if stats is None or stats.replica_pool_bytes == 0:
        why = "gpu_pool_bytes is 0 there"
    elif not stats.replica_pools:
        why = "no engine of a GPU has asked yet"
    elif whole:
        why = next((pool.problem for pool in stats.replica_pools if pool.problem), "none has told why")
    else:
        why = "none of them can"
    return f"no GPU of {node.name} keeps replicas: {why}; blocks are read from the node's pool"


def _reduced(node: Node, tenant: str) -> str:
    told = () if node.stats is None else node.stats.tenants
    floors = next((_floors(each) for each in told if each.tenant == tenant), "less than its floor")
    return f"{node.name} guarantees {floors}: its pool is too small"


def _floors(tenant: TenantStats) -> str:
    return f"{format_size(tenant.effective_floor_bytes)} of the floor of {format_size(tenant.floor_bytes)}"


def _effective(status: ConditionStatus, reason: str, message: str, since: float) -> Condition:
    return Condition("Effective", status, reason, message, since)


def over_all(record: Record, living: Sequence[tuple[str, Sequence[Condition]]]) -> list[Condition]:
    """`Applied` and `Effective` over the nodes that are not lost, each as (name, its two conditions)."""
    if not living:
        message = "no node that it is for is connected"
        return [
            Condition("Applied", "False", "NoNode", message, record.since),
            Condition("Effective", "False", "NoNode", message, record.since),
        ]
    return [
        _sum("Applied", [conditions[0] for _, conditions in living]),
        _sum("Effective", [conditions[1] for _, conditions in living]),
    ]


def _sum(kind: ConditionType, each: Sequence[Condition]) -> Condition:
    """True when it is on all; else what stands in the way longest, and on how many."""
    wrong = sorted((one for one in each if one.status != "True"), key=lambda one: (one.status, one.since))
    if not wrong:
        return Condition(
            kind, "True", kind, f"on {len(each)} of {len(each)} nodes", max(one.since for one in each)
        )
    first = wrong[0]
    good = len(each) - len(wrong)
    return Condition(
        kind, first.status, first.reason, f"on {good} of {len(each)} nodes; {first.message}", first.since
    )
