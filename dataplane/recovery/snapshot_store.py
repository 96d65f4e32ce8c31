"""Snapshots across restarts: saved when they are acknowledged, and applied again at the start."""

from __future__ import annotations

import structlog

from dataplane.core.operator.intent import Intent
from dataplane.core.operator.tier_records import TierRecords
from dataplane.protocol.control.snapshots import Snapshot, SnapshotType
from dataplane.recovery.state import SavedSnapshot, StateDirectory

ORDER: tuple[SnapshotType, ...] = ("policies", "quotas", "pins", "tiers")

log = structlog.stdlib.get_logger()


class SnapshotStore:
    """Connects the intent in force with the state directory."""

    def __init__(self, state: StateDirectory, intent: Intent, tiers: TierRecords) -> None:
        self._state = state
        self._intent = intent
        self._tiers = tiers
        self._pins: Snapshot | None = None
        self._expiries: dict[str, float] = {}

    def apply(self, now: float) -> None:
        """Apply the saved snapshots again; those that cannot be applied are set aside."""
        for kind in ORDER:
            saved = self._state.load(kind)
            if saved is None:
                continue
            # Pins that hits have kept alive must not expire by their original expiry: their moved ends are applied
            # afterwards.
            at = 0.0 if kind == "pins" else now
            faults = self._intent.apply(saved.snapshot, saved.bodies, self._tiers, at)
            if faults:
                self._state.set_aside(kind, "; ".join(f"{fault.path}: {fault.message}" for fault in faults[:3]))
                continue
            if kind == "pins":
                self._move(saved, now)
            log.info("snapshot.restored", type=kind, generation=saved.snapshot.generation)

    def _move(self, saved: SavedSnapshot, now: float) -> None:
        self._pins = saved.snapshot
        for name, end in saved.ends.items():
            pin = self._intent.pool.pins.by_name.get(name)
            if pin is not None and pin.spec.refresh_s is not None:
                pin.prolong(end)
        self._intent.expire_pins(now)
        self._expiries = self._moved()

    def acknowledged(self, snapshot: Snapshot) -> None:
        """Save a snapshot that is now in force."""
        if snapshot.type == "pins":
            self._pins = snapshot
            self._expiries = self._moved()
            self._keep_pins()
        else:
            self._state.save_snapshot(snapshot.type, SavedSnapshot(snapshot))

    def refresh(self) -> None:
        """Save the expiry of pins that hits have extended."""
        expiries = self._moved()
        if expiries != self._expiries:
            self._expiries = expiries
            self._keep_pins()

    def _keep_pins(self) -> None:
        if self._pins is not None:
            self._state.save_snapshot("pins", SavedSnapshot(self._pins, dict(self._intent.bodies), self._expiries))

    def _moved(self) -> dict[str, float]:
        pins = self._intent.pool.pins.by_name.values()
        return {
            pin.name: pin.expires_at
            for pin in pins
            if pin.expires_at is not None and pin.expires_at != pin.spec.expires_at
        }
