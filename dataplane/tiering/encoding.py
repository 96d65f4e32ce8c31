"""Encodes blocks as the record of a tier says, and stores them in the tier. Runs on threads of the tier."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from dataplane.core.tiering.jobs import JobBlock
from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import CODEC_NAMES, CopyEnd, Outcome
from dataplane.tiers.codecs.codec import BlockCodec, NotEncoded
from dataplane.tiers.tier import BlockStore, Tier

CALL_S = 30.0
"""Deadline of a call that stores blocks or deletes."""


def store_blocks(
    blocks: Sequence[JobBlock], codec: BlockCodec | None, tier: Tier, *, encoded_only: bool
) -> list[CopyEnd]:
    """Store the blocks of a job. A block that cannot be encoded into fewer bytes is stored as it is, or with
    `encoded_only` not at all: its end is then FAILED with a reason. Raises TierError."""
    copy_ends: list[CopyEnd] = []
    stores: dict[int, tuple[BlockStore, str]] = {}
    for at, block in enumerate(blocks):
        store, reason = _encoded(block, codec)
        copy_ends.append(CopyEnd(Outcome.FAILED, not_compressed=reason))
        if not (reason and encoded_only):
            stores[at] = store, reason
    outcomes = tier.store([store for store, _ in stores.values()], time.monotonic() + CALL_S)
    for (at, (store, reason)), outcome in zip(stores.items(), outcomes, strict=True):
        copy_ends[at] = _end(store, outcome, reason, tier)
    return copy_ends


def _encoded(block: JobBlock, codec: BlockCodec | None) -> tuple[BlockStore, str]:
    """Return the block to store, and the reason why it is not encoded; empty if it is, or if there is no codec."""
    stored, data = block.stored, block.memory
    assert stored is not None
    reason = ""
    if codec is not None:
        try:
            encoded = codec.encode(data, block.form)
        except NotEncoded as error:
            reason = error.reason
        else:
            if not codec.lossless:
                stored = msgspec.structs.replace(stored, checksum=checksum(encoded.data))
            elif not stored.checksum:
                stored = msgspec.structs.replace(stored, checksum=checksum(data))
            return BlockStore(stored, encoded.data, encoded.encoding), ""
    if not stored.checksum:
        stored = msgspec.structs.replace(stored, checksum=checksum(data))
    return BlockStore(stored, data), reason


def _end(store: BlockStore, outcome: Outcome, reason: str, tier: Tier) -> CopyEnd:
    if outcome is not Outcome.OK:
        return CopyEnd(outcome)
    if store.encoding is None:
        return CopyEnd(outcome, not_compressed=reason)
    return CopyEnd(outcome, tier.stored_size(store.encoding.nbytes), CODEC_NAMES[store.encoding.codec])
