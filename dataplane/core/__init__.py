"""The decisions of the data plane: where blocks are placed, which ones are evicted, which requests are refused and why.

The core takes messages and the current time and returns replies and events. `node.Node` is its entry point for engines
and operators, `inprocess` for gateways and for copies that the data plane makes. A single thread runs it.

The core does no I/O: it imports no socket, thread, clock, logger or metric, and reaches memory and the barrier only
through the protocols in `blocks.ports`. Clients and the management plane may not import it.
"""
