"""Figures of the data plane, as an engine sees it."""
