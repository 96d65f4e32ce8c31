"""Structured log lines of the management plane."""

from dataplane.base.log import Level, configure

__all__ = ["Level", "configure"]
