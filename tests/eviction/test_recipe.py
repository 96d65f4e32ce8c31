"""The policy of the recipe 'Add an eviction policy' in CONTRIBUTING.md satisfies the protocol."""

from random import Random
from typing import Any

from dataplane.policies import EvictionPolicy
from tests.recipes import code


def test_the_policy_of_the_recipe_works() -> None:
    names: dict[str, Any] = {}
    exec(code("Add an eviction policy"), names)
    policy: EvictionPolicy = names["Mru"]()
    methods = {name for name in vars(EvictionPolicy) if not name.startswith("_")}
    assert methods <= set(dir(policy))
    random, order, now = Random(1), list[int](), 0.0
    for _ in range(2000):
        now += 1
        block = random.randrange(24)
        if block not in order:
            policy.insert(block, block, 4096, now)
            order.append(block)
        elif random.random() < 0.6:
            random.choice([policy.touch, policy.refresh])(block, now)
            order.remove(block)
            order.append(block)
        else:
            block = next(policy.victims(now)) if random.random() < 0.5 else block
            if block == order[-1]:
                policy.evict(block, now)
            else:
                policy.remove(block)
            order.remove(block)
        assert list(policy.victims(now)) == order[::-1]
        assert len(policy) == len(order)
