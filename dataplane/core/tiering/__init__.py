"""Decisions about tiers behind memory: what is copied to a tier, what is loaded, and what a tier evicts.

The catalog says what each tier holds:

    catalog        all tiers together, the directory that engines read, deletions and invalidations in force
    tier_state     one tier: its record, what it holds, what is being copied to it, its counters
    contents       the blocks of one tier, charged to tenants; tier_order (blocks and tenants in the order of eviction)
                   and tier_pins (what pins hold) are its parts
    existence      blocks that other nodes wrote to shared tiers
    invalidations  what an invalidation covers, and how one tier carries it out
    reasons        why blocks were not copied, loaded or moved

Jobs say what moves. `jobs` has the theory, the states and the table:

    jobs           jobs, requests for copies and loads, and the table of both
    copies         makes jobs of requests for copies
    loads          takes requests for loads, and makes jobs of them
    outcomes       applies the outcomes of jobs to catalog and pool

Sources propose copies and loads. They know the catalog, and `copies`, `loads` or the table, and no other source:

    spills         new, used and soon evicted blocks of memory
    pinned_chains  blocks of pins in memory, for tiers
    pin_loads      blocks of pins in tiers, for memory
    cascades       blocks that a tier evicts soon, for the next tier
    drains         blocks that a tier alone holds, before it is removed
    moves          an operator's moves; move_chains selects their blocks in tiers

`tiering` puts the parts together. Nothing here does I/O or reads a clock: `dataplane.tiering.mover` does the I/O.
"""
