"""What vLLM's engine core reports to the connector beside its interface."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dataplane.engines.vllm.adapters import AdapterFiles
from dataplane.engines.vllm.core_calls import watch
from tests.engines.vllm.models import lora, write_adapter


class Connector:
    def __init__(self) -> None:
        self.resets = 0
        self.added: list[AdapterFiles | None] = []

    def reset_cache(self) -> None:
        self.resets += 1

    def adapter_loaded(self, lora_request: Any, before: AdapterFiles | None) -> None:
        self.added.append(before)


class Core:
    """Stands for vLLM's `EngineCore`."""

    def __init__(self, connector: object) -> None:
        self.collective_rpc("load_model")  # as vLLM's core does before it has a scheduler
        self.scheduler = SimpleNamespace(get_kv_connector=lambda: connector)

    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> list[Any]:
        if args == ("fail",):
            raise RuntimeError("half of the weights are loaded")
        return [method]

    def add_lora(self, lora_request: Any) -> bool:
        return True

    def reset_prefix_cache(self, done: bool) -> bool:
        return done


@pytest.fixture
def watched() -> type[Core]:
    calls = {name: getattr(Core, name) for name in ("collective_rpc", "add_lora", "reset_prefix_cache")}
    core = type("Watched", (Core,), calls)
    for _ in range(2):
        watch(core, Connector)
    return core


@pytest.mark.parametrize(
    "method",
    [
        "reload_weights", "update_weights", "finish_weight_update", "start_draft_weight_update", "update_config",
        "apply_model", "load_model", "wake_up", "receive_from_trainer", "get_latest_weights", "add_lora",
        lambda worker: None,
    ],
)  # fmt: skip
def test_after_a_call_that_may_change_weights_what_was_stored_is_a_miss(watched: type[Core], method: Any) -> None:
    connector, other = Connector(), object()
    core = watched(SimpleNamespace(_connectors=[other, connector]))
    assert core.collective_rpc(method, kwargs={}) == [method]
    assert connector.resets == 1
    with pytest.raises(RuntimeError):
        core.collective_rpc(method, None, ("fail",))
    assert connector.resets == 2


@pytest.mark.parametrize(
    "method", ["get_model_inspection", "check_health", "save_sharded_state", "update_max_model_len"]
)
def test_after_other_calls_nothing_is_reset(watched: type[Core], method: str) -> None:
    connector = Connector()
    assert watched(connector).collective_rpc(method) == [method]
    assert connector.resets == 0


def test_what_is_saved_until_the_engines_own_cache_is_empty_is_a_miss_too(watched: type[Core]) -> None:
    connector = Connector()
    core = watched(connector)
    core.reset_prefix_cache(True)
    assert connector.resets == 0
    core.collective_rpc("update_weights")
    assert not core.reset_prefix_cache(False), "blocks are in use"
    assert connector.resets == 1
    for _ in range(2):
        assert core.reset_prefix_cache(True)
    assert connector.resets == 2


def test_an_engine_without_larders_connector_is_left_alone(watched: type[Core]) -> None:
    assert watched(None).collective_rpc("reload_weights") == ["reload_weights"]


def test_an_adapter_is_reported_with_its_files_before_it_was_added(watched: type[Core], tmp_path: Path) -> None:
    connector = Connector()
    assert watched(connector).add_lora(lora(write_adapter(tmp_path / "a", 1)))
    (before,) = connector.added
    assert before is not None
