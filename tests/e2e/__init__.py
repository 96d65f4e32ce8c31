"""Larder as its users run it: `larder up`, real engines, curl, a browser, kill -9."""
