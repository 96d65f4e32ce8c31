"""The management plane: operators' intent, its way to the nodes, and what the nodes tell.

Records live in SQLite or Postgres (`store`), are changed by `services`, are pushed as whole snapshots by `push`, and
what nodes publish comes in by `ingest`. `http` and `cli` are how people reach it. Owns no bytes of any cache.

Layers, imports one way: `cli` > `asgi` > `runtime` > `compose` > `http` > `services` > `store` > `schemas`. Of the data
plane it knows `dataplane.protocol` alone, and starts it as a child process.
"""

__version__ = "0.1.0"
