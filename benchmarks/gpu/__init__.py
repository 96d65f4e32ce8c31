"""Figures of a GPU, or of the emulated device: copies between pages and the pool."""
