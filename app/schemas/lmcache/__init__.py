"""Schemas of LMCache's controller API."""
