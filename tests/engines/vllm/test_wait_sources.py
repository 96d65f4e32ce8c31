"""Where chunks were that a request waited for, as far as its look-ups saw it."""

from dataplane.client.tiers import TierHits
from dataplane.engines.vllm.tier_waits import TierWait
from dataplane.protocol.misses import SOURCES


def test_chunks_that_a_shared_tier_delivers_between_two_lookups_are_remote() -> None:
    wait = TierWait(1, [], 4, 0.0, 1.0, 0.0)
    wait.see(TierHits(1, 0, 0.0, unknown=3))
    wait.see(TierHits(4, 0, 0.0))
    assert wait.sources == {1: "remote", 2: "remote", 3: "remote"}


def test_what_the_directory_says_of_a_chunk_holds() -> None:
    disk = bytes([SOURCES.index("disk")])
    wait = TierWait(0, [], 2, 0.0, 1.0, 0.0)
    wait.see(TierHits(0, 1, 0.0, unknown=1, sources=disk))
    assert wait.sources == {0: "disk", 1: "remote"}
    wait.see(TierHits(0, 2, 0.0, sources=disk + disk))
    assert wait.sources == {0: "disk", 1: "disk"}
    wait.see(TierHits(0, 0, 0.0, unknown=2))
    assert wait.sources == {0: "disk", 1: "disk"}
