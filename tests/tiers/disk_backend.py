"""Disk tiers in a folder of a test, and access to the bytes of their slots."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from dataplane.protocol.stored_blocks import BlockName
from dataplane.tiers.disk.disk_tier import DiskTier
from dataplane.tiers.disk.segment_file import SegmentFile
from dataplane.tiers.registry import TierContext, open_tier
from dataplane.tiers.tier import Tier
from tests.tiers.blocks import CLUSTER

MIB = 1 << 20
SEGMENT_BYTES = 4 * MIB
BUDGET_BYTES = 64 * MIB


class DiskBackend:
    """Opens disk tiers on the directories that it was given."""

    opened: ClassVar[list[DiskTier]] = []
    """Tiers that are closed when the test ends."""

    finds_earlier = True

    def __init__(
        self, *directories: Path, budget_bytes: int = BUDGET_BYTES, segment_bytes: int = SEGMENT_BYTES, **more: Any
    ) -> None:
        self.directories = directories
        self.budget_bytes = budget_bytes
        self.parameters = {"directories": [str(each) for each in directories], "segment_bytes": segment_bytes, **more}

    def open(
        self, cluster: bytes = CLUSTER, node: str = "node-1", budget_bytes: int = 0, cluster_name: str = "production"
    ) -> DiskTier:
        context = TierContext(cluster, node, budget_bytes or self.budget_bytes, cluster_name)
        tier = cast(DiskTier, open_tier("disk", self.parameters, context))
        self.opened.append(tier)
        return tier

    def scanned(self, cluster: bytes = CLUSTER, **more: Any) -> DiskTier:
        """Open a tier that has lost its journals, and reads the headers of all slots instead."""
        for directory in self.directories:
            (directory / "journal").unlink(missing_ok=True)
        return self.open(cluster, **more)

    def stored(self, tier: Tier, of: BlockName) -> bytes:
        segment, slot = slot_of(tier, of)
        with open(segment.path, "rb") as file:
            file.seek(segment.offset(slot))
            return file.read(segment.slot_bytes)

    def overwrite(self, tier: Tier, of: BlockName, data: bytes) -> None:
        segment, slot = slot_of(tier, of)
        with open(segment.path, "r+b") as file:
            file.seek(segment.offset(slot))
            file.write(data.ljust(segment.slot_bytes, b"\0"))

    def plant(self, of: BlockName) -> int:
        for folder in self.directories:
            (folder / "a folder").mkdir()
            (folder / "a folder" / "segment-000009").write_bytes(b"text")
            (folder / of.key.hex()).write_bytes(b"text")
            (folder / "segment-x").write_bytes(b"text")
            os.mkfifo(folder / "fifo")
            (folder / "link").symlink_to("/dev/zero")
            (folder / "unreadable").touch(mode=0)
        return 0  # it reads the files that it wrote, by name

    def segment_bytes_on_disk(self) -> int:
        """Return the size of all segment files."""
        return sum(os.stat(path).st_size for folder in self.directories for path in folder.glob("segment-*"))


def slot_of(tier: Tier, of: BlockName) -> tuple[SegmentFile, int]:
    """Return where a block is."""
    assert isinstance(tier, DiskTier)
    found = tier._find(of.space + of.key)
    assert found is not None
    directory, location = found
    return directory.segments[location >> 32], location & 0xFFFFFFFF


def state(tier: Tier) -> tuple[Sequence[object], int]:
    """Return all that a tier says that it holds, in an order that two tiers share."""
    return sorted(tier.blocks(), key=lambda each: each.name), tier.usage().stored_bytes
