"""Encodes blocks as the record of a tier says, and stores them in the tier. Runs on threads of the tier."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import BlockForm, CopyEnd, Outcome, StoredBlock
from dataplane.protocol.tiers import Compress
from dataplane.tiers.codecs.codec import BlockCodec, NotEncoded
from dataplane.tiers.tier import BlockLoad, BlockStore, Tier

CALL_S = 30.0
"""Deadline of a call that stores blocks or deletes."""


class TierCodec(NamedTuple):
    """The codec that the record of a tier names."""

    name: Compress
    codec: BlockCodec


class BlockBytes(NamedTuple):
    """A block and its bytes in memory."""

    block: StoredBlock
    """Its checksum is empty if it is not known."""
    data: memoryview
    form: BlockForm


def store_blocks(blocks: Sequence[BlockBytes], codec: TierCodec | None, tier: Tier) -> list[CopyEnd]:
    """Store blocks. A block that cannot be encoded into fewer bytes is stored as it is. Raises TierError."""
    stores: list[BlockStore] = []
    reasons: list[str] = []
    for block in blocks:
        store, reason = _encoded(block, codec)
        stores.append(store)
        reasons.append(reason)
    outcomes = tier.store(stores, time.monotonic() + CALL_S)
    return [
        _end(store, outcome, reason, codec, tier)
        for store, outcome, reason in zip(stores, outcomes, reasons, strict=True)
    ]


def _encoded(block: BlockBytes, codec: TierCodec | None) -> tuple[BlockStore, str]:
    """Return the block to store, and the reason why it is not encoded; empty if it is, or if there is no codec."""
    stored, data, form = block
    reason = ""
    if codec is not None:
        try:
            encoded = codec.codec.encode(data, form)
        except NotEncoded as error:
            reason = error.reason
        else:
            if not codec.codec.lossless:
                stored = msgspec.structs.replace(stored, checksum=checksum(encoded.data))
            elif not stored.checksum:
                stored = msgspec.structs.replace(stored, checksum=checksum(data))
            return BlockStore(stored, encoded.data, encoded.encoding), ""
    if not stored.checksum:
        stored = msgspec.structs.replace(stored, checksum=checksum(data))
    return BlockStore(stored, data), reason


def _end(store: BlockStore, outcome: Outcome, reason: str, codec: TierCodec | None, tier: Tier) -> CopyEnd:
    if outcome is not Outcome.OK:
        return CopyEnd(outcome)
    if store.encoding is None or codec is None:
        return CopyEnd(outcome, not_compressed=reason)
    return CopyEnd(outcome, tier.stored_size(store.encoding.nbytes), codec.name)


def reencode_blocks(
    blocks: Sequence[tuple[StoredBlock, BlockForm]], codec: TierCodec | None, tier: Tier
) -> list[CopyEnd]:
    """Load blocks and store them in another form, each in place of the old one. A block stays as it is if it cannot be
    encoded, or if another node has stored it meanwhile; its end is then FAILED with a reason. Raises TierError."""
    deadline = time.monotonic() + CALL_S
    memory = [memoryview(bytearray(stored.length)) for stored, _ in blocks]
    loads = [BlockLoad(stored.name, into) for (stored, _), into in zip(blocks, memory, strict=True)]
    ends: list[CopyEnd] = []
    stores: dict[int, BlockStore] = {}
    for at, ((stored, form), loaded) in enumerate(zip(blocks, tier.load(loads, deadline), strict=True)):
        found = loaded.block
        ends.append(CopyEnd(loaded.outcome))
        if found is None:
            continue
        if (found.tenant, found.sequence) != (stored.tenant, stored.sequence):
            ends[at] = CopyEnd(Outcome.FAILED, not_compressed="other")
            continue
        store, reason = _encoded(BlockBytes(found, memory[at], form), codec)
        if reason:
            ends[at] = CopyEnd(Outcome.FAILED, not_compressed=reason)
        else:
            stores[at] = store
    outcomes = tier.store(list(stores.values()), deadline)
    for (at, store), outcome in zip(stores.items(), outcomes, strict=True):
        ends[at] = _end(store, outcome, "", codec, tier)
        if outcome is Outcome.OK and store.encoding is None:
            ends[at] = CopyEnd(outcome, tier.stored_size(store.block.length))
    return ends
