"""The pool: all blocks with their charges and pins.

`pool` keeps the data structures consistent, `order` has the eviction order of all accounts, `pins` the pins and their
budgets, `sweeps` invalidates and demotes many blocks, and `lineage` finds the descendants of a prefix. `core.eviction`
chooses victims in the pool.
"""
