"""The operations of the LMCache protocol: register, look up, store, retrieve, free, report.

`operations` calls the handler of each operation and serves the registrations itself. The others are in `lookups`
(LOOKUP and its results, for schedulers) and `copies` (stores and retrieves of workers). The other modules hold what
these share: `requests` the decoded requests, `sessions` the leases of look-ups, `chains` the keys of requests.
"""
