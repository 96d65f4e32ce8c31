"""Why the first missing tokens of a request were not loaded: codes that responses, statistics and records of requests
name, each with its meaning."""

ENGINE_REASONS = {
    "too_short": "the prompt has no whole chunk, and only whole chunks are stored",
    "recompute_faster": "the tokens were found, and computing them was expected to be faster than loading them",
    "tier_late": "a tier held the block, but it was not in memory when the request was scheduled",
    "load_failed": "the load of the tokens, or the last load of the block, failed or took too long",
    "not_used": "the request or the engine's role excludes loads from Larder",
    "unkeyed": "the request has no keys",
    "data_plane_away": "the engine was not attached to a data plane",
}
"""Reasons that an engine knows without the data plane."""
NODE_REASONS = {
    "evicted": "the block was evicted, from memory and from all tiers; the cause says why",
    "expired": "the block was dropped after the time that the request which stored it asked for (`larder.ttl`)",
    "invalidated": "the block was invalidated, by an operator or because its space or its tier was cleared",
    "corrupt": "the block was dropped because its bytes did not match their checksum",
    "refused": "storing the block was refused; the cause is the code of the refusal",
    "being_stored": "another request is storing the block, or has stored it since the look-up",
    "tier_away": "only a tier that is out of service holds the block",
    "other_space": "the block is cached for engines that differ in the fields that the cause names, such as dtype, "
    "world_size (tensor parallelism), revision or adapter",
    "never_stored": "the block was not stored since the data plane started, or it was removed before all that the node "
    "remembers",
}
"""Reasons that a data plane finds for the first missing block."""
MISS_REASONS = {**ENGINE_REASONS, **NODE_REASONS}
SOURCES = ("host", "disk", "remote")
"""Where loaded tokens were when the request was looked up, nearest first: memory of the node, a disk tier, another
tier."""


def source_of_type(tier_type: str) -> str:
    """Return the source of tokens that a tier of a type holds."""
    return "disk" if tier_type == "disk" else "remote"
