"""Checks of this machine, and the start and the end of `larder up`."""
