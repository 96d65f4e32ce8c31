"""Schemas of declared documents and of their plan."""
