"""Distributions of observed values."""

import msgspec

from dataplane.protocol.bounded import Finite


class Histogram(msgspec.Struct):
    """Counts of observations since the process started."""

    bounds: list[float]
    counts: list[int]
    """One count for each bound (observations up to it and above the bound before), and one for those above all bounds.
    """
    total: Finite
    """Sum of the observed values."""
