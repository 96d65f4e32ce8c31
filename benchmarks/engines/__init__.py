"""Figures of the connectors: copies between an engine's pages in CPU memory and chunks."""
