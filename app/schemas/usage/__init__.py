"""Schemas of usage reports."""
