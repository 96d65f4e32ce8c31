"""Messages between the management plane and a node over the control socket (ZeroMQ DEALER to ROUTER, MessagePack).

Desired state travels whole, one type at a time: a `Snapshot` carries the entire desired state of its type with a
generation, a nonce and a digest. The node validates all of it and applies all or nothing. It answers `Ack`, or `Nack`
with every fault found; after a `Nack` it keeps its last good state. Large bodies (the keys of a pin) are named by
digest: the node asks once for those it lacks.

Digests are SHA-256 of the exact bytes, in hex. Bodies are MessagePack of the lists below, sorted by name, so that the
same intent has the same digest.
"""
