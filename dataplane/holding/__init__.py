"""The process that holds the memory of a data plane for the next one, and connections to it.

`holder` is the program of that process. It and its parts, `process` (connections), `memory` (descriptors), `folder`,
`messages` and `record`, import only the standard library. `connection` is the data plane's connection, which starts a
holder when there is none, and `requests` are what operators ask it, through the command line.
"""

SOCKETS = LISTENER, CONNECTION = "listener", "connection"
"""Kinds of descriptors that are sockets; all others are memory."""
