"""The cache process: one per node, owner of the KV bytes.

Engines attach over a local socket and read through shared memory; the management plane says over a control
socket what must stay, who may use how much and what goes first. `python -m dataplane` starts it alone.

Layers, imports one way: `compose` and `__main__` wire; `transport` talks; `core` and `eviction` decide and know no
socket, clock or thread; `tiers` holds bytes; `devices` copies those of GPUs; `protocol` says what may be said. `client`
is the engine's side and imports `protocol` alone, and `devices` where its cache is on a GPU. Nothing here imports the
management plane.
"""

__version__ = "0.1.0"
