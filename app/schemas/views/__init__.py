"""Schemas of health, the overview, snapshots and events."""
