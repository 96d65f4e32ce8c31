"""The operations of the LMCache protocol: register, look up, store, retrieve, free, report.

`operations` calls the handler of each operation and serves the registrations itself. The others are in `lookups`
(LOOKUP and its results, for schedulers), `client_copies` (workers that copy by themselves) and `driven` (workers for
which this node copies). The other modules hold what these share: `requests` the decoded requests, `sessions` the leases
of look-ups, `chains` the keys of requests.
"""
