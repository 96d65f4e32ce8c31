"""Changes of records. `generation` is the generation of the record's type that the change created."""

from app.observe.catalogue.plane_event import PlaneEvent


class QuotaCreated(PlaneEvent, tag="quota.created"):
    """A quota was created."""

    tenant: str
    generation: int


class QuotaChanged(PlaneEvent, tag="quota.changed"):
    """A quota was changed."""

    tenant: str
    generation: int


class QuotaDeleted(PlaneEvent, tag="quota.deleted"):
    """A quota was deleted."""

    tenant: str
    generation: int


class PinCreated(PlaneEvent, tag="pin.created"):
    """A pin was created."""

    pin: str
    tenant: str
    generation: int


class PinChanged(PlaneEvent, tag="pin.changed"):
    """A pin was changed."""

    pin: str
    tenant: str
    generation: int


class PinDeleted(PlaneEvent, tag="pin.deleted"):
    """A pin was deleted."""

    pin: str
    tenant: str
    generation: int


class PinEmptied(PlaneEvent, tag="pin.emptied"):
    """A node that cached blocks of a guaranteed or permanent pin no longer caches any."""

    severity = "warning"

    pin: str
    tenant: str
    strength: str
    """`guaranteed` or `permanent`."""
    blocks: int
    """Blocks that the pin covers."""


class PolicyCreated(PlaneEvent, tag="policy.created"):
    """A policy was created."""

    policy: str
    generation: int


class PolicyChanged(PlaneEvent, tag="policy.changed"):
    """A policy was changed."""

    policy: str
    generation: int


class PolicyDeleted(PlaneEvent, tag="policy.deleted"):
    """A policy was deleted."""

    policy: str
    generation: int


class TierCreated(PlaneEvent, tag="tier.created"):
    """A tier was created."""

    tier: str
    generation: int


class TierChanged(PlaneEvent, tag="tier.changed"):
    """A tier was changed."""

    tier: str
    generation: int


class TierDeleted(PlaneEvent, tag="tier.deleted"):
    """A tier was deleted."""

    tier: str
    generation: int


class RecordsChanged(PlaneEvent, tag="records.changed"):
    """One request changed so many records of a type that they have no separate events. The audit log has each."""

    type: str
    generation: int
    created: int
    """Number of records that were created."""
    changed: int
    """Number of records that were changed."""
    deleted: int
    """Number of records that were deleted."""


class CeilingCreated(PlaneEvent, tag="ceiling.created"):
    """A ceiling was created."""

    tenant: str


class CeilingChanged(PlaneEvent, tag="ceiling.changed"):
    """A ceiling was changed."""

    tenant: str


class CeilingDeleted(PlaneEvent, tag="ceiling.deleted"):
    """A ceiling was deleted."""

    tenant: str


class RateCreated(PlaneEvent, tag="rate.created"):
    """A rate was created."""

    rate: str


class RateChanged(PlaneEvent, tag="rate.changed"):
    """A rate was changed."""

    rate: str


class RateDeleted(PlaneEvent, tag="rate.deleted"):
    """A rate was deleted."""

    rate: str


class TokenizerCreated(PlaneEvent, tag="tokenizer.created"):
    """A tokenizer was created."""

    tokenizer: str


class TokenizerChanged(PlaneEvent, tag="tokenizer.changed"):
    """A tokenizer was changed."""

    tokenizer: str


class TokenizerDeleted(PlaneEvent, tag="tokenizer.deleted"):
    """A tokenizer was deleted."""

    tokenizer: str
