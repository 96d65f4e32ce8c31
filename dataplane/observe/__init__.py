"""Delivery of events: a bounded event bus and its subscribers. A failure here cannot affect the core."""
