"""One tier in use."""

from __future__ import annotations

from dataplane.core.tiering.tier_state import TierState
from dataplane.tiering.breaker import Breaker
from dataplane.tiering.encoding import TierCodec
from dataplane.tiering.rates import Rates
from dataplane.tiering.worker import TierWorker
from dataplane.tiers.registry import codec_of


class TierRun:
    """One tier in use: its state, its threads and its calls under way."""

    def __init__(self, state: TierState, worker: TierWorker) -> None:
        self.state = state
        self.worker = worker
        self.opened = False
        """Whether its contents are known. Until then, the tier does not serve."""
        self.breaker = Breaker()
        self.rates = Rates()
        self.copying = 0
        """Calls under way that copy to the tier."""
        self.deleting = self.reencoding = False
        self.shrinking = False
        self.looking = 0
        """Calls under way that ask a shared tier for blocks."""
        self.listing_fault = ""
        """Why the last attempt to list a shared tier failed; empty if none did."""

    @property
    def codec(self) -> TierCodec | None:
        """How blocks are encoded from now on."""
        codec = codec_of(self.state.spec)
        return None if codec is None else TierCodec(self.state.spec.compress, codec)

    @property
    def serves(self) -> bool:
        """Whether blocks are copied to the tier and loaded from it."""
        return self.opened and self.breaker.serves and not self.state.closing
