"""Rows of API tokens and of the audit log."""
