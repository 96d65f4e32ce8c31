"""The tier `redis`: blocks in Redis or Valkey, one value per block, shared by the nodes of a cluster.

No client library is used: one would build an object of Python for each value, and its requests cannot be bounded by a
deadline.

    parameters   the record's parameters
    resp         the protocol on a socket, with a deadline for every step and values read into memory
    connection   one connection: TLS, the password, the database
    servers      the servers: which one holds a key, idle connections, backoff
    commands     the commands on one block, and what their replies mean
    tier         the interface of a tier
"""

from dataplane.tiers.redis.parameters import RedisParameters
from dataplane.tiers.redis.tier import RedisTier
from dataplane.tiers.registry import TierType

TYPE = TierType(RedisParameters, RedisTier, shared=True)
