"""Tenants: their limits, and the order in which their blocks are evicted.

`quotas` has the tenants with their quotas and counters, `usage` the numbers for bills and reports, and `pins` the pins
and their budgets. `accounts` ranks accounts by borrowed bytes; each account has one queue of `eviction_queues`.
"""
