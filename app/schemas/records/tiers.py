"""Tiers: stores behind the memory of nodes."""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from app.schemas.base.fields import SizeText, bounds
from app.schemas.base.listing import Page
from app.schemas.base.records import ManagedBy, Note, Selector
from app.schemas.base.status import RecordStatus
from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.tiers import (
    MAX_BUDGET_BYTES,
    MAX_DEADLINE_S,
    MAX_IN_FLIGHT_BYTES,
    MAX_ORDER,
    MIN_IN_FLIGHT_BYTES,
    Compress,
    Spill,
)

IN_FLIGHT_BYTES = 64 << 20
BudgetBytes = Annotated[int, bounds(minimum=1, maximum=MAX_BUDGET_BYTES)] | SizeText
InFlightBytes = Annotated[int, bounds(minimum=MIN_IN_FLIGHT_BYTES, maximum=MAX_IN_FLIGHT_BYTES)] | SizeText


class TierPut(msgspec.Struct, forbid_unknown_fields=True):
    """A complete tier record; omitted fields get their defaults, and `type` and `budget_bytes` have none. Sizes are
    bytes, or text such as `4GiB`. Secrets are references: `env:NAME`, or `file:/path` of a file on each node."""

    type: Annotated[str | msgspec.UnsetType, Meta(examples=["s3"])] = msgspec.UNSET
    """Required: `disk`, `mooncake`, `redis` or `s3`, or a type that another package adds."""
    budget_bytes: Annotated[BudgetBytes | msgspec.UnsetType, Meta(examples=["4GiB"])] = msgspec.UNSET
    """Required: most bytes that each node keeps in the tier. A tier of the type `disk` needs at least one segment file,
    1 GiB if `parameters` does not set `segment_bytes`."""
    parameters: Annotated[dict[str, Any], Meta(examples=[{"url": "s3://bucket/larder", "region": "eu-central-1"}])] = {}
    """Parameters of the type, such as the directories of a disk tier."""
    order: Annotated[int, bounds(minimum=0, maximum=MAX_ORDER), Meta(examples=[10])] = 0
    """A block that several tiers hold is loaded from the one with the lowest number: 0 to 1,000."""
    spill: Spill = "commit"
    """Which blocks are copied to the tier: all that are stored (`commit`), those that are used again (`second_touch`),
    those that memory evicts soon (`evict`), those that a tier with a lower `order` evicts soon and no other tier holds
    (`cascade`), or none (`off`). With `drain`, it gets none either, the blocks that it alone holds are copied to
    another tier, and the record cannot be deleted before that is done."""
    load_deadline_s: Annotated[float, bounds(exclusiveMinimum=0, maximum=MAX_DEADLINE_S), Meta(examples=[2])] = 5.0
    """Seconds after which a load that has not begun is cancelled: at most 300."""
    max_bytes_in_flight: Annotated[InFlightBytes, Meta(examples=["128MiB"])] = IN_FLIGHT_BYTES
    """Most bytes that are copied to the tier, and that are loaded from it, at the same time: 1 MiB to 64 GiB."""
    compress: Annotated[Compress, Meta(examples=["zstd"])] = "none"
    """How blocks are encoded when they are copied to the tier: as they are in memory (`none`), losslessly (`zstd`), or
    in half the bytes with an error (`fp8`). Only the type `s3` supports `zstd` and `fp8`. Blocks that the tier already
    holds stay as they are."""
    note: Note = ""
    managed_by: ManagedBy = ""
    selector: Selector = None

    REQUIRED: ClassVar = ("type", "budget_bytes")


class TierRecord(msgspec.Struct, frozen=True):
    """A tier record. Each field is a column of the table."""

    name: str
    type: str
    budget_bytes: int
    parameters: dict[str, Any]
    order: int
    spill: Spill
    load_deadline_s: float
    max_bytes_in_flight: int
    compress: Compress
    note: str
    managed_by: str
    selector: dict[str, str] | None
    """Labels of the nodes that the record selects; null for all nodes."""
    generation: int
    """The generation of `tiers` that last changed this record; its ETag is this number in quotes."""


class TierRefusal(msgspec.Struct, frozen=True):
    """Why a node refused the tiers that it was sent."""

    path: str
    """e.g. `tiers.nvme.parameters.directories`. It may name another tier: a node applies all tiers or none."""
    code: str
    message: str


class TierAnswer(TierRecord, frozen=True):
    """A tier record, and the state of the tier on the nodes."""

    etag: str
    """ETag for `If-Match`."""
    created_at: float
    updated_at: float
    blocks: int
    """Sum over the nodes in `stats`. Blocks of a shared tier count for the node that wrote them."""
    stored_bytes: int
    logical_bytes: int
    """Bytes of these blocks as they are in memory, before compression and without headers."""
    unspilled_bytes: int
    """Bytes of blocks that wait to be copied to the tier, or are being copied. A node that ends with its memory loses
    them, unless another tier holds them."""
    stats: dict[str, TierStats]
    """Contents and work of the tier, by node; without lost nodes, and nodes where it is not open."""
    faults: dict[str, list[TierRefusal]]
    """Faults of the nodes that refuse the current tiers, by node."""
    status: RecordStatus


class SettingsTier(msgspec.Struct, frozen=True):
    """A tier that the settings of nodes declare. It has no record, and only the settings change it."""

    name: str
    blocks: int
    """Sum over the nodes in `stats`."""
    stored_bytes: int
    logical_bytes: int
    unspilled_bytes: int
    """Bytes that are not spilled yet, as for a record."""
    stats: dict[str, TierStats]
    """Properties, contents and work of the tier, by node; without lost nodes."""


class TierList(Page, frozen=True):
    items: list[TierAnswer]
    from_settings: list[SettingsTier]
    """Tiers of the settings of nodes, on every page; `type` filters them, and `managed_by` excludes them."""


class TierDeletion(msgspec.Struct, frozen=True):
    """A deleted record, and what the tier held. Nothing of it is deleted."""

    name: str
    generation: int
    """The generation of `tiers` without the record."""
    blocks: int
    """Sum over the nodes, as they last reported it."""
    stored_bytes: int
    nodes: list[str]
    """Sorted names of the nodes that reported the tier."""
    message: str
    """The fate of the blocks, as a sentence."""
