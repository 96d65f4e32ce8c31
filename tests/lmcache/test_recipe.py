"""The operation of the recipe 'Add an operation of LMCache' in CONTRIBUTING.md is answered."""

from collections.abc import Callable
from typing import Any

import pytest

from dataplane.gateways.lmcache.handlers import operations as handlers
from dataplane.gateways.lmcache.wire import operations as wire
from tests.lmcache.gateway import Gateway
from tests.recipes import blocks


def test_the_operation_of_the_recipe_is_answered(
    make_gateway: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    row, method = blocks("Add an operation of LMCache")
    operation = eval(row.strip().rstrip(","), vars(wire))
    namespace: dict[str, Any] = dict(vars(handlers))
    exec(method, namespace)
    monkeypatch.setattr(handlers.GatewayHandlers, operation.name, namespace[operation.name], raising=False)
    monkeypatch.setattr(handlers, "OPERATIONS", (*wire.OPERATIONS, operation))
    monkeypatch.setattr(wire, "BY_NAME", {**wire.BY_NAME, operation.name: operation})
    gateway = make_gateway()
    assert gateway.client().ask_by_name(operation.name) == gateway.client().register()["pool_size"]
