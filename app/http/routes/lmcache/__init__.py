"""Routes that serve the HTTP API of LMCache's controller."""
