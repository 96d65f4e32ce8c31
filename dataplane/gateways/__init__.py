"""Gateways: serve the wire protocols of other caches from this node's cache."""
