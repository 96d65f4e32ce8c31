"""The eviction order in force, over all tenants and within each tenant that has a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dataplane.core.blocks import Block
from dataplane.core.quotas import Tenant
from dataplane.eviction import EvictionPolicy


class Order:
    """Keeps the global order and the tenants' own orders in step."""

    def __init__(self, policy: Callable[[], EvictionPolicy]) -> None:
        self._policy = policy
        self.all: EvictionPolicy = policy()

    def insert(self, block: Block, now: float) -> None:
        """The block became evictable."""
        self.all.insert(block.number, block.charge, now)
        if block.tenant.order is not None:
            block.tenant.order.insert(block.number, block.charge, now)

    def touch(self, block: Block, now: float) -> None:
        """The block was used; blocks inside the pin budget are in no order."""
        if block.guaranteed:
            return
        self.all.touch(block.number, now)
        if block.tenant.order is not None:
            block.tenant.order.touch(block.number, now)

    def remove(self, block: Block) -> None:
        """The block is no longer evictable."""
        self.all.remove(block.number)
        if block.tenant.order is not None:
            block.tenant.order.remove(block.number)

    def split(self, tenant: Tenant, blocks: dict[int, Block], now: float) -> None:
        """Give a tenant an order of its own, in the sequence of the global one."""
        own = self._policy()
        for number in self.all.victims():
            if blocks[number].tenant is tenant:
                own.insert(number, blocks[number].charge, now)
        tenant.order = own

    def victims(self, tenant: Tenant | None) -> Iterator[int]:
        """First to go first: of one tenant that has an order of its own, or of all."""
        if tenant is not None and tenant.order is not None:
            return tenant.order.victims()
        return self.all.victims()
