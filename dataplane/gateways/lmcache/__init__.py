"""The LMCache gateway: serve engines that speak the protocol of LMCache's multiprocess mode, without changes to them.

A ROUTER socket receives requests from engines. Every request is answered, even an invalid one, because a client without
an answer waits for a timeout of minutes. KV bytes never travel over the socket: clients map one named segment and copy
by themselves ("engine driven"), or describe memory of their own that this process maps and copies ("lmcache driven").

The gateway attaches to the core on behalf of each registered worker and of each scheduler that looks up, so quotas,
pins, policies, leases and events apply as for any other engine. The gateway makes no decisions of its own and never
unpickles data. The protocol has no authentication: any client that can reach the port may read, write and clear what
the gateway serves.

Who may import it: `dataplane.compose`.
"""
