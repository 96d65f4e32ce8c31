"""Read-only views over all subjects: the overview, snapshots, events."""
