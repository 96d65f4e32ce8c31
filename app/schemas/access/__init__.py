"""Schemas of API tokens and audit entries."""
