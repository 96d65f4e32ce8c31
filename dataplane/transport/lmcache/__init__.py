"""The LMCache gateway: engines that speak the wire of LMCache's multiprocess mode use this node's cache unchanged.

A ROUTER socket takes requests of engines, and every one is answered, also when it is wrong: the clients' only other way
out is a time-out of minutes. Bytes never travel here: clients map one named segment and copy by themselves
("engine driven"), or name memory of theirs that this process maps and copies ("lmcache driven").

The gateway attaches to the core in the name of each registered worker and of each scheduler that looks up, so that
quotas, pins, policies, leases and events are those of every other engine. It decides nothing of its own, and it never
unpickles. The wire knows no authentication: whoever reaches the port may read, write and clear what the gateway serves.

Who may import it: `dataplane.compose`.
"""
