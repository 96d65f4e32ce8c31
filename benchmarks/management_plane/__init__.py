"""Figures of the API and of `larder up`."""
