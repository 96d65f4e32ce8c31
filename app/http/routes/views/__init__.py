"""Routes for health, metrics, the overview, snapshots, events and the event stream."""
