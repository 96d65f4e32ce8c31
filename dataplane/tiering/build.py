"""Builds the tiers of a node from its settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dataplane.base.settings import SettingsError
from dataplane.core.node import Node
from dataplane.io.loop import Loop
from dataplane.memory.memory import NodeMemory
from dataplane.protocol.tiers import TierSpec
from dataplane.settings import DataPlaneSettings
from dataplane.tiering.service import TierService
from dataplane.tiers.registry import tier_faults_of

SMALLEST_BLOCK_BYTES = 64 << 10
"""The directory has room for a budget of blocks of this size."""
MAX_LISTED = 1 << 23
MAX_SEGMENT_BYTES = 1 << 30
SEGMENTS = 16
"""A small budget is divided into so many files, because a file holds blocks of one size."""


def specs_of(settings: DataPlaneSettings) -> list[TierSpec]:
    """Return the tiers that the settings declare."""
    table = settings.table
    if not table.disk_tier_directories:
        return []
    return [
        TierSpec(
            name="disk",
            type="disk",
            budget_bytes=table.disk_tier_bytes,
            parameters={
                "directories": list(table.disk_tier_directories),
                "segment_bytes": min(MAX_SEGMENT_BYTES, table.disk_tier_bytes // SEGMENTS // 4096 * 4096),
            },
            spill=table.disk_tier_spill,
        )
    ]


def node_tiers(
    settings: DataPlaneSettings, loop: Loop, node: Node, memory: NodeMemory, clock: Callable[[], float], state: Path
) -> TierService:
    """Build the tiers of the settings; those of records join them later. Raises SettingsError for parameters that the
    type does not accept."""
    specs = specs_of(settings)
    for spec in specs:
        for field, message in tier_faults_of(spec):
            raise SettingsError(f"dataplane.{spec.name}_tier: {field}: {message}")
    blocks = min(MAX_LISTED, sum(spec.budget_bytes for spec in specs) // SMALLEST_BLOCK_BYTES)
    listed = max(settings.table.tier_directory_blocks, blocks)
    cluster = settings.table.tier_cluster
    return TierService(loop, node, memory, clock, state, cluster, specs, listed, settings.table.tier_secrets)
