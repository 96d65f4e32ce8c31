"""Schemas of cached blocks and of actions on them."""
