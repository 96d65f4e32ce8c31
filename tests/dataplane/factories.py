"""Keys, spaces and snapshots, made from small numbers so that a test reads as its sentence."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from dataplane.core.journal.id_journal import IdJournal, half_bytes_for, names_bytes
from dataplane.core.journal.recovery_table import RecoveryTable, recovery_table_bytes
from dataplane.protocol.control.records import (
    POLICY_IN_FORCE,
    PinSpec,
    PolicySpec,
    QuotaSpec,
    Strength,
    Tier,
    encode_pins,
    encode_policies,
    encode_quotas,
)
from dataplane.protocol.control.snapshots import Snapshot, SnapshotType, digest_of
from dataplane.protocol.spaces import Space

MODEL = "llama"
STORE = "store-1"
KIB = 1024
MIB = 1024 * 1024


def private_memory(max_blocks: int) -> tuple[RecoveryTable, IdJournal]:
    """Memory of a node that engines never get."""
    table = RecoveryTable(bytearray(recovery_table_bytes(max_blocks)), max_blocks)
    table.format(0)
    journal = IdJournal(memoryview(mmap.mmap(-1, names_bytes(half_bytes_for(max_blocks)))))
    journal.format()
    return table, journal


def key(name: object) -> bytes:
    """A 32-byte key."""
    return sha256(repr(name).encode()).digest()


def keys(count: int, name: object = "chain") -> list[bytes]:
    """A chain of keys."""
    return [key((name, at)) for at in range(count)]


def packed(chain: Sequence[bytes]) -> bytes:
    return b"".join(chain)


def space(model: str = MODEL, *, rank: int = 0, world_size: int = 1, block_bytes: int = 0, dtype: str = "") -> Space:
    return Space(model=model, rank=rank, world_size=world_size, block_bytes=block_bytes, dtype=dtype)


def snapshot(
    kind: SnapshotType, body: bytes, generation: int = 1, *, store: str = STORE, digest: str | None = None
) -> Snapshot:
    """A snapshot of any body; its digest is right unless given."""
    return Snapshot(
        type=kind,
        store=store,
        generation=generation,
        nonce=f"{kind}-{generation}",
        digest=digest_of(body) if digest is None else digest,
        body=body,
    )


def quotas(limits: dict[str, int | None], generation: int = 1, *, store: str = STORE) -> Snapshot:
    """A quotas snapshot: limit in bytes by salt."""
    body = encode_quotas([QuotaSpec(tenant, limit) for tenant, limit in limits.items()])
    return snapshot("quotas", body, generation, store=store)


def shares(*specs: QuotaSpec, generation: int = 1) -> Snapshot:
    """A quotas snapshot of whole records."""
    return snapshot("quotas", encode_quotas(list(specs)), generation)


def policy(generation: int = 1, **fields: Any) -> Snapshot:
    """A policies snapshot with one record in force, by the fields of `PolicySpec`."""
    return snapshot("policies", encode_policies([PolicySpec(POLICY_IN_FORCE, **fields)]), generation)


def pin(
    name: str,
    chain: Sequence[bytes],
    *,
    model: str = MODEL,
    tenant: str = "",
    expires_at: float | None = None,
    strength: Strength = "guaranteed",
    refresh_s: float | None = None,
    tier: Tier = "host",
) -> tuple[PinSpec, bytes]:
    """A pin's record and its body."""
    body = packed(chain)
    return PinSpec(name, model, tenant, digest_of(body), expires_at, strength, refresh_s, tier), body


def pins(records: Sequence[tuple[PinSpec, bytes]], generation: int = 1) -> tuple[Snapshot, dict[str, bytes]]:
    """A pins snapshot and the bodies it refers to."""
    body = encode_pins([spec for spec, _ in records])
    return snapshot("pins", body, generation), {digest_of(each): each for _, each in records}
