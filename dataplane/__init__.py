"""The cache process, one per node; it owns the KV bytes.

Engines attach over a local socket and read through shared memory. Over a control socket, the management plane sets
pins, quotas and the eviction policy. `python -m dataplane` starts the process on its own.

Imports go one way. `compose` and `__main__` wire all objects, `report` reads what they count. `gateways` and `sockets`
serve peers, and `copies` moves bytes between devices and the pool. `core` and `policies` make the decisions; they use
no socket, clock or thread. `memory` holds the bytes, `devices` copies those of GPUs, `io` has the event loop and tracks
the processes of peers, and `recovery` keeps memory across a stop or a kill. `tiers` holds the stores behind memory;
`tiering` opens them, and moves blocks. `protocol` defines the messages between engines, data plane and management
plane, and `base` holds other code that both planes share. `client` is the engine's side; it imports `protocol`, and
`devices` if the engine's cache is on a GPU. `engines` holds the connectors, which run inside engines.
No module here imports the management plane.
"""

__version__ = "0.1.0"
