"""vLLM's OpenAI server with the connector: what a client and Prometheus see, and the example."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from dataplane.protocol.control.sessions import ListSessions, SessionsListed
from examples.vllm.model import write_model
from examples.vllm.processes import vllm
from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import ANSWER_S, PATIENT, REPOSITORY, prompt
from tests.run_marks import short_folder

CHUNK = 256
TOKENS = 1000
EXAMPLE_S = 1600.0


@dataclass
class Client:
    """A client of the server. An empty `salt` sends none."""

    http: httpx.Client

    def ask(self, tokens: list[int], salt: str = "", **fields: Any) -> Any:
        request = {"model": "tiny", "prompt": tokens, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
        if salt:
            request["cache_salt"] = salt
        answer = self.http.post("/v1/completions", json=request)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def forget(self, *, larder: bool = False) -> None:
        """Empty the server's own prefix cache; with `larder`, also make all blocks stored so far misses. vLLM refuses
        while a finished request keeps its blocks until they are saved, and frees them with its next step."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self.http.post("/reset_prefix_cache", params={"reset_external": larder})
            if answer.json() == {"success": True}:
                return
            assert time.monotonic() < deadline, answer.text
            self.ask(prompt(8))

    def metrics(self) -> dict[str, float]:
        """Return the connector's counters."""
        found = re.findall(r"^vllm:larder_(\w+)_total\{.*\} (\S+)$", self.http.get("/metrics").text, re.MULTILINE)
        return {name: float(value) for name, value in found}


@pytest.fixture(scope="module")
def client(pool: Plane) -> Iterator[Client]:
    transfer = {
        "kv_connector": "LarderConnector",
        "kv_connector_module_path": "dataplane.engines.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "larder.socket": pool.socket,
            "larder.min_load_tokens": 0,
            **{f"larder.{name}": value for name, value in PATIENT.items()},
        },
    }
    with short_folder() as folder:
        model = write_model(folder / "model")
        with vllm("server", folder / "server", model, transfer, VLLM_SERVER_DEV_MODE="1") as server:
            server.wait_for("/health")
            with httpx.Client(base_url=server.url, timeout=ANSWER_S, trust_env=False) as http:
                yield Client(http)


def stored(pool: Plane, blocks: int) -> None:
    pool.wait_stats(lambda stats: stats.totals.stored_blocks >= blocks, f"{blocks} blocks stored", ANSWER_S)


def loaded(answer: Any) -> tuple[int, int]:
    """Return the tokens from Larder, as the connector counts, and from any cache, as vLLM counts."""
    loaded_tokens = (answer["kv_transfer_params"] or {}).get("larder", {}).get("loaded_tokens", 0)
    return loaded_tokens, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def text(answer: Any) -> str:
    return str(answer["choices"][0]["text"])


def test_requests_of_one_salt_load_and_those_of_another_do_not(client: Client, pool: Plane) -> None:
    tokens, whole = prompt(TOKENS, 1), TOKENS // CHUNK
    first = client.ask(tokens, "acme")
    stored(pool, whole)
    client.forget()
    second = client.ask(tokens, "acme")
    other = client.ask(tokens, "rival")
    assert [loaded(each) for each in (first, second, other)] == [(0, 0), (whole * CHUNK, whole * CHUNK), (0, 0)]
    assert text(first) == text(second) == text(other)


def settled(client: Client, pool: Plane) -> dict[str, float]:
    """Return the counters once they agree with the data plane. vLLM collects them with its steps, once a second."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        client.ask(prompt(8))
        now, totals = client.metrics(), pool.describe().totals
        agreed = (now["saved_blocks"], now["loaded_bytes"]) == (totals.stored_blocks, totals.read_bytes)
        if agreed and now["hit_tokens"] == now["loaded_tokens"]:
            return now
        assert time.monotonic() < deadline, (now, totals)


def test_the_metrics_count_loads_and_stores(client: Client, pool: Plane) -> None:
    tokens, whole = prompt(TOKENS, 2), TOKENS // CHUNK
    before, blocks = settled(client, pool), pool.describe().totals.stored_blocks
    client.ask(tokens, "acme")
    stored(pool, blocks + whole)
    client.forget()
    assert loaded(client.ask(tokens, "acme"))[0] == whole * CHUNK
    now = settled(client, pool)
    grown = {name: value - before[name] for name, value in now.items()}
    assert grown["hit_tokens"] == grown["loaded_tokens"] == whole * CHUNK
    assert grown["lookup_tokens"] >= 2 * TOKENS
    assert grown["saved_blocks"] == whole
    assert grown["saved_bytes"] == grown["loaded_bytes"] > 0
    assert grown["load_seconds"] + grown["step_load_seconds"] > 0, "beside a step, or inside one"
    bad = ("errors", "lost_loads", "late_loads", "failed_loads", "dropped_saves")
    assert [grown[name] for name in bad] == [0] * len(bad)
    assert "unkeyed_requests" not in now, "it has a label, so it appears with the first of its requests"


def test_a_reset_of_the_external_cache_makes_the_next_request_a_miss(client: Client, pool: Plane) -> None:
    tokens, blocks = prompt(TOKENS, 3), pool.describe().totals.stored_blocks
    first = client.ask(tokens, "acme")
    stored(pool, blocks + TOKENS // CHUNK)
    client.forget(larder=True)
    again = client.ask(tokens, "acme")
    assert loaded(again) == (0, 0)
    assert text(again) == text(first)


def test_a_request_may_ask_not_to_be_loaded_or_stored(client: Client, pool: Plane) -> None:
    tokens, blocks = prompt(TOKENS, 4), pool.describe().totals.stored_blocks
    client.ask(tokens, kv_transfer_params={"larder.skip_save": True})
    client.forget()
    first = client.ask(tokens)
    stored(pool, blocks + TOKENS // CHUNK)
    client.forget()
    skipped = client.ask(tokens, kv_transfer_params={"larder.skip_load": True})
    client.forget()
    assert [loaded(each)[0] for each in (first, skipped, client.ask(tokens))] == [0, 0, TOKENS // CHUNK * CHUNK]


def test_hints_of_a_request_apply_and_wrong_ones_cost_it_nothing(client: Client, pool: Plane) -> None:
    tokens, before = prompt(TOKENS, 6), pool.describe().totals
    whole = TOKENS // CHUNK
    hinted = client.ask(tokens, kv_transfer_params={"larder.pin": 60})
    stored(pool, before.stored_blocks + whole)
    assert pool.describe().totals.hinted_pin_blocks == before.hinted_pin_blocks + whole
    ignored = settled(client, pool)["ignored_hints"]
    again = client.ask(tokens, kv_transfer_params={"larder.pin": "forever", "larder.ttl": -1})
    assert text(again) == text(hinted)
    deadline = time.monotonic() + ANSWER_S
    while (now := settled(client, pool)["ignored_hints"]) < ignored + 2:
        assert time.monotonic() < deadline, now
    assert now == ignored + 2


def test_a_request_names_its_session(client: Client, pool: Plane) -> None:
    tokens, blocks, whole = prompt(TOKENS, 8), pool.describe().totals.stored_blocks, TOKENS // CHUNK
    client.ask(tokens, "talker", kv_transfer_params={"larder.session": "option"})
    stored(pool, blocks + whole)
    client.ask(tokens, "talker", session_id="field")
    client.http.headers["X-Session-ID"] = "header"
    client.ask(prompt(TOKENS, 9), "talker")
    del client.http.headers["X-Session-ID"]
    stored(pool, blocks + 2 * whole)
    with pool.manager() as manager:
        listed: SessionsListed = manager.ask(ListSessions("n"))
    states = {state.session: state for state in listed.sessions if state.tenant == "talker"}
    assert {name: state.chunks for name, state in states.items()} == {"option": whole, "field": whole, "header": whole}
    assert states["header"].private_bytes > 0 == states["option"].private_bytes == states["field"].private_bytes


def test_the_server_continues_without_larder_and_uses_the_next_one(client: Client, pool: Plane) -> None:
    tokens, whole = prompt(TOKENS, 5), TOKENS // CHUNK
    pool.kill()
    alone = client.ask(tokens, "acme")
    assert loaded(alone) == (0, 0)
    pool.start()
    deadline = time.monotonic() + ANSWER_S
    while pool.describe().totals.stored_blocks < whole:
        assert time.monotonic() < deadline, pool.describe()
        client.forget()
        client.ask(tokens, "acme")
    client.forget()
    again = client.ask(tokens, "acme")
    assert loaded(again) == (whole * CHUNK, whole * CHUNK)
    assert text(again) == text(alone)


def test_a_pause_waits_for_copies_and_the_request_continues_after_it(client: Client, pool: Plane) -> None:
    tokens, blocks = prompt(TOKENS, 7), pool.describe().totals.stored_blocks
    right = text(client.ask(tokens, "before", max_tokens=48))
    stored(pool, blocks + TOKENS // CHUNK)
    with ThreadPoolExecutor(1) as threads:
        requested = pool.describe().totals.requested_blocks
        running = threads.submit(client.ask, tokens, "during", max_tokens=48)
        pool.wait_stats(lambda stats: stats.totals.requested_blocks > requested, "it is looked up", ANSWER_S)
        for path in ("/pause?mode=keep", "/resume"):
            answer = client.http.post(path)
            assert answer.status_code == 200, answer.text
        assert text(running.result(ANSWER_S)) == right
    client.forget()
    assert text(client.ask(tokens, "during", max_tokens=48)) == right


def test_the_example_shows_served_blocks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.vllm"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=EXAMPLE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^([ab]) +(\w+) +\d+ +(\d+) +(\d+) .*the same$", done.stdout, re.MULTILINE)
    assert [(name, tenant, own, int(larder) > 0) for name, tenant, own, larder in rows] == [
        ("a", "acme", "0", False), ("b", "acme", "0", True), ("b", "rival", "0", False), ("a", "rival", "0", True),
    ], done.stdout  # fmt: skip
