"""The process that holds the memory of a data plane for the next one, and connections to it.

`holder` is that process, and `connection` the data plane's connection, which starts one when there is none. `requests`
are what operators ask it, through the command line.
"""

SOCKETS = LISTENER, CONNECTION = "listener", "connection"
"""Kinds of descriptors that are sockets; all others are memory."""
