"""Why blocks were not copied to tiers, not loaded from them, or not moved: the reasons that statistics, metrics and
results of moves name, each with its meaning."""

CALL_REASONS = {"late": "a call did not end in time", "failed": "the tier reported an error"}
REFUSED = {
    "away": "the tier was out of service",
    "waiting": "65,536 blocks already wait: the tier is slower than the engines store",
    "budget": "the budget has no room, or none without evicting a block that the same move has copied",
    "full": "the server or the device has no room",
    "limit": "the quota of the block's tenant has no room",
    "listing": "the shared tier is being listed, and the block would need room",
    "size": "the block of another tier is larger than the pool of this node",
    "evicted": "with the spill `cascade`: the tier before it evicted the block before it was copied, or after its copy "
    "was refused",
    **CALL_REASONS,
}
"""Blocks that were not copied to a tier (`refused` of a tier)."""
LOST = {
    "memory": "the pool or the tenant's limits had no room",
    "missing": "the tier no longer has the block; it is no longer listed",
    "corrupt": "the bytes do not match the checksum; the block is no longer listed",
    "invalidated": "an invalidation of this node covers the block of a shared tier, or it has another tenant now",
    "clock": "the recorded time of the block in a shared tier is more than 60 s in the future",
    "waiting": "too many requests for loads wait: of 1,024 places, an engine can take half of those that the others "
    "leave free, and always 4",
    **CALL_REASONS,
}
"""Blocks that were not loaded from a tier (`lost` of a tier)."""
NOT_MOVED = {
    "pinned": "a guaranteed or a permanent pin holds the block, so it was not removed",
    "leased": "an engine was still reading the block at the deadline",
    "gone": "the block was evicted or invalidated before its turn",
    "evicted": "the tier evicted the copy before the block was removed from where it was",
    "budget": "the tier's budget, or 80 % of the pool, has no room, or none without evicting a block that the same "
    "move has copied",
    "detached": "no engine of the block's model and layout has attached on this node, so the size of its blocks is not "
    "known: start one, and repeat the move. Moves between tiers need no engine",
    "missing": "no tier has the block, or a block before it in its chain",
    "late": "the deadline passed, or a call did not end in time",
    "hung": "a call of one of the two tiers did not return within 40 s; its tier is out of service",
    "cancelled": "the move was cancelled",
    "other": "for `compress`: another node has stored the block meanwhile",
}
"""Blocks that a move did not move, or did not remove from where they were (`refused` of a move). Reasons of REFUSED,
LOST and NOT_COMPRESSED occur, too."""
NOT_COMPRESSED = {
    "size": "the encoded block is not smaller",
    "dtype": "for fp8: the data type is not one of the three",
    "heads": "for fp8: the size of a head is not known, or the block does not consist of whole heads",
    "values": "for fp8: the block has numbers that are not finite",
}
"""Blocks that were copied as they are although the tier compresses (`not_compressed` of a tier)."""
