"""Records that a node receives: quotas, pins, policies and tiers, and the bodies of their snapshots.

Bodies are MessagePack of lists, sorted by name, so that the same intent has the same digest.
"""

from typing import Literal

import msgspec

from dataplane.protocol.tiers import TierSpec

MAX_RECORDS = 100_000
MAX_PINNED_KEYS = 262_144
"""Limit for all pins of a node together; pins of one model and tenant with the same keys count once."""
MIN_WEIGHT, MAX_WEIGHT = 0.01, 1000.0
MAX_QUOTA_TIERS = 8
"""Limit for the tiers that one quota names."""
Algorithm = Literal["lru", "age_class", "s3fifo", "arc", "slru", "lfu", "fifo", "noop"]
ALGORITHMS: tuple[Algorithm, ...] = ("lru", "age_class", "s3fifo", "arc", "slru", "lfu", "fifo", "noop")
OnExceed = Literal["evict_self", "reject"]
Mode = Literal["enforce", "observe"]
Strength = Literal["soft", "guaranteed", "permanent"]
Tier = Literal["host", "gpu"]
TIERS: tuple[Tier, ...] = ("host", "gpu")
POLICY_IN_FORCE = "default"
"""Name of the policy record that is in force on a node."""


class TierQuota(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Quota of one tenant in one tier behind memory."""

    floor_bytes: int = 0
    """Bytes of the tier that no other tenant can take; scaled down when its budget cannot hold the sum of all
    floors."""
    limit_bytes: int | None = None
    """Hard cap in bytes, headers and rounding included; None for no cap."""


class QuotaSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Quota of one tenant. `tenant` is the salt ('' for the default tenant). Fields at their default are omitted, so
    that the same intent has the same digest in every release that knows the fields."""

    tenant: str
    limit_bytes: int | None = None
    """Hard cap in bytes; None for no cap."""
    floor_bytes: int = 0
    """Bytes that no other tenant can take; scaled down when the pool cannot hold the sum of all floors."""
    weight: float = 1.0
    """Weight of this tenant when tenants share the bytes above their floors; 0.01 to 1,000."""
    pin_budget_bytes: int | None = None
    """Bytes that guaranteed pins of this tenant may hold, within the pool's own pin budget; None: only the pool's
    budget applies."""
    store_rate_bytes: int | None = None
    """Bytes per second that this tenant may store, with a burst of one second's worth; None for no limit."""
    on_exceed: OnExceed = "evict_self"
    """At the limit, evict the tenant's own blocks to make room, or refuse the store."""
    mode: Mode = "enforce"
    """`observe`: limits are not enforced, and stores that they would have refused are counted."""
    tiers: dict[str, TierQuota] = {}
    """Quotas in tiers behind memory, by the name of the tier, at most MAX_QUOTA_TIERS. `weight`, `on_exceed` and
    `mode` apply to them, too. In a tier without an entry the tenant shares what others leave."""


class PinSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Keys of a tenant that must stay cached, in every space of a model."""

    name: str
    model: str
    tenant: str
    keys_digest: str
    """SHA-256 in hex of the packed keys (n keys of 32 bytes); the keys are sent separately, in `Bodies`."""
    expires_at: float | None = None
    """Unix seconds; None if the pin does not expire."""
    strength: Strength = "guaranteed"
    """`soft`: evicted last; `guaranteed`: kept until the pin expires, within the budgets; `permanent`: like
    `guaranteed`, but first in line for the budget, not affected by `invalidate`, and without an expiry."""
    refresh_s: float | None = None
    """Every hit moves the expiry to this many seconds after the hit; None: the expiry is fixed."""
    tier: Tier = "host"
    """`gpu`: in addition to the block in the pool, keep a GPU copy on every GPU whose engines read the space, as far as
    the GPU's pool has room."""


class PolicySpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Eviction policy. The record named `default` is in force; if there is none, the defaults below are."""

    name: str
    algorithm: Algorithm = "lru"
    admission: bool = False
    """Under pressure, admit a block only if its key was seen before."""
    admission_idle_s: float = 240.0
    """Pressure means that victims had been idle for less than this many seconds on average."""
    high_watermark: float = 1.0
    """Fraction of the pool above which blocks are evicted ahead of need, down to `low_watermark`; 1: evict only when
    room is needed."""
    low_watermark: float = 1.0


def encode_quotas(specs: list[QuotaSpec]) -> bytes:
    """Return the body of a `quotas` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.tenant), order="deterministic")


def encode_pins(specs: list[PinSpec]) -> bytes:
    """Return the body of a `pins` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.name))


def encode_policies(specs: list[PolicySpec]) -> bytes:
    """Return the body of a `policies` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.name))


def encode_tiers(specs: list[TierSpec]) -> bytes:
    """Return the body of a `tiers` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.name))
