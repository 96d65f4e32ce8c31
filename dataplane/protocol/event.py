"""Base classes and common fields of the events of both planes.

An event is a struct with the tag `noun.past_participle` (the only exception is `node.stats`, which is a state). Its
class declares its severity, whether the history stores it, and whether it is block traffic. A field name means the same
in every event; `COMMON_FIELDS` describes the common ones.
"""

from typing import ClassVar, Literal

import msgspec

Severity = Literal["info", "warning", "error"]


class EventStruct(msgspec.Struct, tag_field="event"):
    """Base class of all events."""

    severity: ClassVar[Severity] = "info"
    """`error`: something failed or was lost; `warning`: an operator should look at it; `info`: all other events."""
    stored: ClassVar[bool] = True
    """The history keeps it. False for events of normal operation, which are only in the event stream."""
    per_block: ClassVar[bool] = False
    """Block traffic: frequent, summed at high rates, and the first to be dropped from a full queue."""


class NodeEvent(EventStruct):
    """Base class of the events of a data plane."""

    at: float


class BlockEvent(NodeEvent):
    """Base class of events about one tenant's blocks, which can be added up."""

    per_block: ClassVar[bool] = True


COMMON_FIELDS = {
    "actor": "Principal that caused it, as in the audit log.",
    "at": "When it happened, in Unix seconds.",
    "blocks": "Number of blocks.",
    "bytes": "Size of the blocks or the memory.",
    "capacity_bytes": "Size of the pool.",
    "client": "Number of the engine's connection; 0 for several.",
    "device": "UUID of the GPU.",
    "digest": "Digest of the snapshot.",
    "engine": "Name that the engine gave itself.",
    "epoch": "Random id of the data plane process.",
    "events": "Number of events that this one sums up.",
    "file": "Path of the file.",
    "gateway": "Name of the gateway.",
    "generation": "Generation of the records' type.",
    "group": "Engine group: processes that share memory.",
    "host": "Name of the manager's machine.",
    "join_token": "Id of the join token.",
    "kind": "Kind of sweep: `invalidate`, `demote` or `clear`.",
    "lost_blocks": "Blocks that are no longer cached.",
    "lost_bytes": "Their size.",
    "manager": "Id of the manager.",
    "model": "Name of the model.",
    "node": "Name of the node.",
    "pid": "Process id.",
    "pin": "Name of the pin.",
    "policy": "Name of the policy.",
    "pool_bytes": "Requested size of the pool.",
    "quarantined_blocks": "Blocks that a process could still write.",
    "rate": "Name of the rate.",
    "reason": "Reason of the event.",
    "segment": "Number of the segment.",
    "space": "Space of the blocks, or its model.",
    "sweep": "Number of the sweep on its node.",
    "tenant": "Name of the tenant.",
    "tier": "Name of the tier.",
    "token": "Name of the token.",
    "tokenizer": "Name of the tokenizer.",
    "type": "Type of record: `quotas`, `pins`, `policies` or `tiers`.",
    "verification": "Number of the verification on its node.",
}
"""Meaning of fields that several events have; a field with another meaning has another name."""


def name_of(event: EventStruct | type[EventStruct]) -> str:
    """Return the event's name, which is also its topic."""
    tag = event.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
