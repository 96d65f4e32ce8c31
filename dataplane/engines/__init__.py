"""Connectors, which run inside inference engines."""
