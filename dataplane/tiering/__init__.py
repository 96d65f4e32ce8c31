"""Carries out the decisions of `dataplane.core.tiering`. Calls to tiers run on threads, never on the event loop.

service     opens, changes and closes the tiers of settings and records
opening     opens one tier and reads its contents
background  threads for single calls, and long work on the loop in slices
breaker     takes a tier that fails out of service, and tries it again later
worker      the threads of one tier, and their calls under way
listing     lists the blocks that a node wrote to a shared tier before it started
tier_run    one tier in use
transfers   copies from one tier to another, through a buffer
mover       one for each node: begins copies, loads and look-ups, reports their ends, publishes the directory
tombstones  stores invalidations in a file until every tier has deleted the blocks that they cover
"""
