"""How often a source may fail to say who it is: a burst, then one a second, by address, in bounded memory."""

import ipaddress
from collections import OrderedDict

BURST = 10.0
PER_SECOND = 1.0
MOST_SOURCES = 4096


class Throttle:
    """Only failures are counted: who has a valid token is never kept waiting."""

    def __init__(
        self, burst: float = BURST, per_second: float = PER_SECOND, most: int = MOST_SOURCES
    ) -> None:
        self._burst = burst
        self._per_second = per_second
        self._most = most
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def failed(self, source: str, now: float) -> float:
        """Count a failure at a monotonic time; seconds until the next one is answered, 0 when this one still is."""
        key = neighbourhood(source)
        left, at = self._left.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        allowed = left >= 1
        left -= 1 if allowed else 0
        self._left[key] = (left, now)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._per_second


def neighbourhood(source: str) -> str:
    """What stands for an address where sources are counted. Of IPv6 the network: who has one address there has all."""
    if ":" not in source:
        return source
    try:
        address = ipaddress.IPv6Address(source)
    except ValueError:
        return source
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((address, 64), strict=False))
