"""Servers and tokens that the command line remembers, in private files."""
