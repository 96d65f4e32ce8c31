"""Decisions about tiers behind memory: what is copied to a tier, what is loaded, and what a tier evicts.

    tier_state  one tier: its record, what it holds, what waits for it, its counters
    contents    what one tier holds, charged to tenants, in eviction order
    tier_pins   pins in one tier: what it does not evict, and how many blocks of each pin it holds
    pinned_chains  chains of pins that changed, looked up in parts
    pin_loads   loads of blocks of guaranteed pins that only tiers hold
    spills      copies to tiers: which blocks wait for which tier, and what an outcome means
    loads       blocks that wait to be loaded: one load for each key, however many engines ask
    moves       moves on request: to a tier, to memory, between tiers
    transfers   copies from one tier to another
    drains      copies of what a tier alone holds, before it is removed
    cascades    copies of blocks that a tier evicts soon to the next tier
    listings    what this node wrote to shared tiers before it started
    existence   blocks that other nodes wrote to shared tiers
    invalidations  what an invalidation covers, and how one tier carries it out
    tiering     the tiers of a node together, and their effect on the pool

Nothing here does I/O or reads a clock: `dataplane.tiering.mover` carries out the decisions on threads, and reports the
outcomes.
"""
