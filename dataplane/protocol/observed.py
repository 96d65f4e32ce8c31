"""What a node has applied of the desired state."""

import msgspec

from dataplane.protocol.bounded import Digest, Identity, Whole


class Observed(msgspec.Struct, frozen=True):
    """Snapshot of one type that a node has applied."""

    generation: Whole
    digest: Digest
    store: Identity
