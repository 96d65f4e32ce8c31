"""Tenants: their limits, and the order in which their blocks are evicted.

`tenant` is one tenant, `quotas` all of them with their quotas, and `usage` the numbers for bills and reports.
`accounts` ranks accounts by borrowed bytes; each account has one queue of `eviction_queues`. Imports neither `blocks`
nor `pool`.
"""
