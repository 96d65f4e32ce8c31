"""Operator requests to a node: scopes, look-ups, listing, audit, verification, and the pushed intent."""
