"""Tiers: stores behind the memory of the pool, such as disks, Redis and S3.

`tier` is the interface that every tier implements, `header` is what is stored in front of each block, `registry` finds
and opens types of tiers, such as `disk`. A tier moves bytes and knows nothing of quotas, pins or policies: those are
decisions of `dataplane.core`, which sees ids and sizes. `tests/tiers/conformance.py` is what every tier must do.
"""
