"""The tier `redis`: blocks in Redis or Valkey, one value per block, shared by the nodes of a cluster.

redis-py opens the connections (TCP, TLS, authentication) and parses short replies. Values are read by `replies`
straight into the memory of the caller: the library builds an object of Python for each value and is several times
slower.

    parameters   the record's parameters
    replies      bytes of a connection, read and written with a deadline: lines, short strings, values into memory
    connection   one connection, on which every step has a deadline
    servers      the servers: which one holds a key, idle connections, backoff
    commands     the commands on one block, and what their replies mean
    tier         the interface of a tier
"""

from dataplane.tiers.redis.parameters import RedisParameters
from dataplane.tiers.registry import TierType

try:
    from dataplane.tiers.redis.tier import RedisTier
except ModuleNotFoundError as error:
    raise ImportError(f"{error}; pip install 'larder[redis]'") from None

TYPE = TierType(RedisParameters, RedisTier, shared=True)
