"""Does what `dataplane.core.tiering` decides. Calls to tiers run on threads, never on the event loop.

mover       one for each node: does the I/O of jobs
wake        wakes the mover when there is work
worker      the threads of one tier, and their calls under way
encoding    encodes and stores blocks, on these threads
tier_run    one tier in use: its look-ups, deletions and probes, its budget, and its row of the directory
breaker     takes a tier that fails out of service, and tries it again later
service     opens, changes and closes the tiers of settings and records; `build` makes those of settings
opening     opens one tier and reads its contents
listing     lists the blocks that a node wrote to a shared tier before it started
background  threads for single calls, and long work on the loop in slices
tombstones  stores invalidations in a file until every tier has deleted the blocks that they cover
known_spaces  stores the spaces that engines have attached, in a file
"""
