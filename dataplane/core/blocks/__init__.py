"""Blocks and their placement in memory.

`blocks` has the descriptors and the index, `slabs` the slot allocator, `segments` the creation and retirement of
segments, `ranges` the free ranges of the named segment, and `leases` the lease counters. `ports` declares the services
that the core needs from outside. Imports `tenants`, and is imported by `pool`.
"""
