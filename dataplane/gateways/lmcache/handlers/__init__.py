"""The operations of the LMCache protocol: register, look up, store, retrieve, free, report.

`operations` maps each operation to its handler and serves the registrations itself. The others are in `lookups`
(LOOKUP and its results, for schedulers), `client_copies` (workers that copy by themselves) and `driven` (workers for
which this node copies). The other modules hold what these share: `instances` the registered workers, `sessions` the
leases of look-ups, `transfers` the open stores and reads, `chains` the keys of requests.
"""
