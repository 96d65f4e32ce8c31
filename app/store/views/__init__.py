"""Rows of events."""
