"""The management plane: it records the intent of operators, pushes it to nodes, and shows what nodes report.

Records are stored in SQLite or Postgres (`store`) and changed by `services`. `push` sends them to nodes as whole
snapshots, `ingest` receives the events of nodes, and `supervisor` runs the data plane of this machine as a separate
process. Users reach the management plane through `http` and `cli`. It owns no bytes of any cache.

Imports go one way: `cli` > `asgi` > `runtime` > `compose` > `http` > `services` > `store` > `schemas`. Of the data
plane, this package imports only `dataplane.protocol` and `dataplane.base`.
"""

__version__ = "0.1.0"
