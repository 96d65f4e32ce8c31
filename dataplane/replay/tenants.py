"""Assignment of requests to tenants by weight, deterministic in the request number."""

import math
from bisect import bisect_right
from itertools import accumulate

from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import salt_of, shown

_MASK = (1 << 64) - 1


class Shares:
    """Tenants and their shares of the requests. The shares need not add up to one."""

    def __init__(self, weights: dict[str, float]) -> None:
        """`weights` maps salts to positive finite numbers. Raise ValueError if there is none or one is invalid."""
        if not weights:
            raise ValueError("expected at least one tenant")
        for salt, weight in weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise ValueError(f"expected a weight above 0 for {shown(salt)}, got {weight}")
        self.salts = tuple(weights)
        total = sum(weights.values())
        self._bounds = list(accumulate(weight / total for weight in weights.values()))[:-1]

    def of(self, number: int) -> str:
        """Return the salt for a request number."""
        return self.salts[bisect_right(self._bounds, _mixed(number) / 2**64)]


def parse_shares(text: str) -> Shares:
    """Parse shares such as `"a=0.5,b=0.5"`; `_default` names the empty salt. Raise ValueError."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = part.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ValueError(f"expected NAME=WEIGHT, got {part.strip()!r}")
        try:
            salt = salt_of(name)
            number = float(weight)
        except ProtocolError as error:
            raise ValueError(f"{name!r} is not a tenant: {error.message}") from None
        except ValueError:
            raise ValueError(f"expected a number as the weight of {name}, got {weight.strip()!r}") from None
        if salt in weights:
            raise ValueError(f"tenant {name} is named twice")
        weights[salt] = number
    return Shares(weights)


def _mixed(number: int) -> int:
    """Return SplitMix64 of a request number, so that neighbours get unrelated values."""
    value = (number * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
