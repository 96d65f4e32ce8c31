"""Rows of usage, and their retention."""
