"""Sockets of the data plane: engines, control, events, and joining a fleet."""
