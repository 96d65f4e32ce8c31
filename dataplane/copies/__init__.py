"""Copies between the pool and device memory, for the engine socket and the gateways."""
