"""Eviction: choose victims and make room for stores, limits and watermarks.

`reclaimer` is the entry point. `victim_iterator` yields candidates across accounts, `reclaim_plan` selects those that
make usable room, and `ancestors` finds the chains before leased blocks.
"""
