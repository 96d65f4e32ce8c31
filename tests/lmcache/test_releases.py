"""Releases of LMCache: both forms of keys share chunks, the operations since 0.5.7, what is known of each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from dataplane.protocol.stats.gateways import GatewayClient
from tests.lmcache.client import NOTHING, Client, context, in_bytes, key, lookup_key, packed, prompt
from tests.lmcache.gateway import Gateway

NOTHING_PREPARED: dict[str, Any] = {"context": {}}


def clients(gateway: Gateway) -> list[GatewayClient]:
    return gateway.server.stats(gateway.bench.now).clients


class TestKeys:
    def test_a_newer_client_stores_what_an_older_one_finds(self, worker: Client, gateway: Gateway) -> None:
        tokens = in_bytes(key(prompt(2)))
        assert len(worker.ask("prepare_store", tokens, 7)["context"]["slots"]) == 2
        assert worker.ask("commit_store", tokens, 7, b"") is True
        with gateway.client() as older:
            assert older.lookup(prompt(2), "other") == 2
            assert older.prepare_retrieve(prompt(2), "other")["success"]
            assert older.commit_retrieve(prompt(2), "other")

    def test_an_older_client_stores_what_a_newer_one_finds(self, worker: Client) -> None:
        worker.store(prompt(2), "older")
        assert worker.ask("prepare_store", in_bytes(key(prompt(2))), 7) == {
            "context": {"slots": [], "chunk_indices": []}
        }
        assert worker.ask("lookup", in_bytes(lookup_key(prompt(2))), 1) is NOTHING
        assert worker.status("r") == 2
        assert worker.ask("free_lookup_locks", in_bytes(lookup_key(prompt(2), start=256, end=512)), 1, []) is NOTHING
        one = in_bytes(key(prompt(2), end=256))
        assert worker.ask("prepare_retrieve", one, 7)["success"]
        assert worker.ask("commit_retrieve", one, 7) is True

    @pytest.mark.parametrize("absent", ["token_ids", "token_bytes"])
    def test_an_absent_form_may_be_nil(self, worker: Client, gateway: Gateway, absent: str) -> None:
        given = key(prompt(2)) if absent == "token_bytes" else in_bytes(key(prompt(2)))
        assert len(worker.ask("prepare_store", {**given, absent: None}, 7)["context"]["slots"]) == 2
        (seen,) = clients(gateway)
        assert (seen.unknown, seen.refused) == ("", 0)

    def test_a_look_up_of_a_newer_client_is_answered_byte_for_byte(self, worker: Client) -> None:
        worker.store(prompt(2))
        tokens = "".join(f"{token:08x}" for token in prompt(2))
        key_frame = (
            "8a aa6d6f64656c5f6e616d65 a56c6c616d61 aa776f726c645f73697a65 01 a9776f726b65725f6964 c0"
            f" ab746f6b656e5f6279746573 c5{4 * len(prompt(2)):04x} {tokens} a57374617274 00 a3656e64 cd0200"
            " aa726571756573745f6964 a27231 aa63616368655f73616c74 a0 af726571756573745f636f6e66696773 c0"
            " ae6e756d5f6b765f72656164657273 01"
        )
        worker.send([b"\x0a", b"\x08", bytes.fromhex(key_frame), b"\x01"])
        assert worker.receive() == [b"\x0a", b"\x08"]
        worker.send([b"\x0b", b"\x09", b"\xa2r1"])
        assert worker.receive() == [b"\x0b", b"\x09", b"\x02"]

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"token_bytes": b"123"}, "token_bytes: expected a multiple of 4 bytes, got 3"),
            ({"token_bytes": "text"}, "Expected `bytes | null`, got `str` - at `$.token_bytes`"),
            ({"token_bytes": b"", "token_ids": []}, "expected token_ids or token_bytes, got both"),
            ({"token_bytes": None}, "expected token_ids or token_bytes, got neither"),
            ({"token_bytes": None, "token_ids": None}, "expected token_ids or token_bytes, got neither"),
            ({"token_bytes": bytes(4 << 20) + bytes(4)}, "expected at most 1048576 tokens, got 1048577"),
        ],
    )
    def test_wrong_tokens_are_refused(
        self, worker: Client, gateway: Gateway, fields: dict[str, Any], message: str
    ) -> None:
        wrong = {**in_bytes(key(prompt(1))), **fields}
        with capture_logs() as logged:
            assert worker.ask("prepare_store", wrong, 7) == NOTHING_PREPARED
        assert message in logged[0]["message"]
        (seen,) = clients(gateway)
        assert seen.refused == 1
        assert message in seen.reason
        assert worker.store(prompt(1))


class TestOperations:
    @pytest.mark.parametrize("alignment", [1, 16, 128, 256])
    def test_a_chunk_size_that_fits_is_agreed(self, client: Client, gateway: Gateway, alignment: int) -> None:
        assert client.ask("negotiate_chunk_size", alignment) == 256
        assert not clients(gateway)[0].refused

    @pytest.mark.parametrize("alignment", [0, -1, 48, 512, 784, 2**62])
    def test_a_chunk_size_that_does_not_fit_is_reported_and_counted(
        self, client: Client, gateway: Gateway, alignment: int
    ) -> None:
        """The client ends with a message when its blocks do not fill the chunks that it is told."""
        assert client.ask("negotiate_chunk_size", alignment) == 256
        (seen,) = clients(gateway)
        assert seen.refused == 1
        assert seen.reason.startswith("negotiate_chunk_size: ")

    def test_a_model_of_several_layouts_is_refused_and_stores_nothing(self, client: Client, gateway: Gateway) -> None:
        layout = {"num_layers": 2, "hidden_dim_size": 8, "dtype_str": "float16", "tokens_per_block": 16}
        assert client.register(group_layouts=[layout, {**layout, "window_tokens": 16}]) == {
            "shm_name": "",
            "pool_size": 0,
        }
        assert client.ask("prepare_store", in_bytes(key(prompt(1))), 7, [[], [0]]) == NOTHING_PREPARED
        assert client.commit_store(prompt(1)) is False
        assert client.lookup(prompt(1)) == 0
        (seen,) = clients(gateway)
        assert seen.refused == 1
        assert "group_layouts: expected a model whose layers share one layout, got 2 groups" in seen.reason

    def test_no_groups_are_one_layout(self, client: Client) -> None:
        assert client.register(group_layouts=[])["pool_size"] > 0
        assert len(client.ask("prepare_store", key(prompt(1)), 7, [])["context"]["slots"]) == 1

    def test_a_store_that_skips_chunks_is_refused(self, worker: Client) -> None:
        assert worker.ask("prepare_store", key(prompt(2)), 7, [[0]]) == NOTHING_PREPARED
        assert worker.lookup(prompt(2)) == 0

    @pytest.mark.parametrize("operation", ["server_module_call", "server_module_affinity_call"])
    def test_a_call_of_a_module_reports_that_there_are_none(self, client: Client, operation: str) -> None:
        answer = client.ask_by_name(operation, {"method": "a.b", "payload": b""})
        assert (answer["success"], answer["payload"]) == (False, b"")
        assert "no modules" in answer["error"]

    def test_a_subscription_to_events_reports_that_there_are_none(self, client: Client) -> None:
        """Without `enabled`, a worker would subscribe again every second and report no events of its own."""
        batch = client.ask_by_name("subscribe_kv_events", 7, "llama", 0, 1024)
        assert batch == {"enabled": False, "incarnation": 0, "next_cursor": 0, "lost": False, "events": []}
        client.send([b"\x01", b"", b"cancel"])
        assert client.ask("noop") == "OK"


class TestCoveredLookups:
    """Since 0.5.7, `start` of a look-up is the end of what the engine has in its own memory."""

    def test_chunks_before_the_start_are_not_looked_up(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(4))
        assert worker.lookup(prompt(4), start=512) == 4
        assert gateway.leased() == 2
        assert worker.prepare_retrieve(prompt(4), start=512)["success"]
        assert worker.commit_retrieve(prompt(4), start=512)
        assert gateway.leased() == 0
        stats = gateway.server.stats(0.0)
        assert (stats.requested_chunks, stats.hit_chunks) == (2, 2)

    def test_missing_chunks_before_the_start_do_not_matter(self, worker: Client) -> None:
        worker.store(prompt(4), start=512)
        assert worker.lookup(prompt(4)) == 0
        assert worker.lookup(prompt(4), start=512) == 4
        assert worker.lookup(prompt(4), start=256) == 1

    @pytest.mark.parametrize("start", [0, 256, 300, 1024])
    def test_a_miss_is_what_the_engine_has(self, worker: Client, gateway: Gateway, start: int) -> None:
        assert worker.lookup(prompt(4), start=start) == start // 256
        assert gateway.leased() == 0

    def test_an_abandoned_look_up_leaves_nothing_to_free(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(4))
        assert worker.lookup(prompt(4), start=512) == 4
        assert worker.lookup(prompt(4)) == 4
        assert worker.ask("free_lookup_locks", lookup_key(prompt(4), end=256), 1, [[512, 1024]]) is NOTHING
        assert gateway.leased() == 3
        assert worker.ask("free_lookup_locks", lookup_key(prompt(4), end=0), 1, [[0, 1024]]) is NOTHING
        assert gateway.leased() == 3


class TestClients:
    @pytest.mark.parametrize(
        ("release", "change"),
        [
            ("0.5.7", in_bytes),
            ("0.5.5 or 0.5.6", dict),
            ("0.5.3 or 0.5.4", lambda each: {name: each[name] for name in each if name != "num_kv_readers"}),
        ],
    )
    def test_the_first_key_tells_the_release(
        self, client: Client, gateway: Gateway, release: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        assert clients(gateway)[0].release == ""
        client.ask("lookup", change(lookup_key(prompt(1))), 1)
        (seen,) = clients(gateway)
        assert (seen.release, seen.unknown, seen.refused) == (release, "", 0)

    def test_the_number_of_the_first_request_tells_the_oldest(self, gateway: Gateway) -> None:
        with gateway.client(greet=False) as old:
            assert old.call(18) == [packed(256)]
            old.call(5, packed(lookup_key(prompt(1))), packed(1))
            assert clients(gateway)[0].release == "0.5.0 to 0.5.2"

    @pytest.mark.parametrize(
        ("operation", "arguments", "unknown"),
        [
            ("lookup", [{**lookup_key(prompt(1)), "token_words": b""}, 1], "fields of a key: token_words"),
            (
                "register_kv_cache_engine_driven_context",
                [{**context(), "paging": 1}],
                "fields of a registration: paging",
            ),
            ("look_up_in_part", [1], "unknown operation 'look_up_in_part'"),
            ("lookup", [lookup_key(prompt(1)), 1, 2], "lookup: expected 1 to 2 arguments, got 3"),
            ("lookup", [{"token_words": b"", "start": 0}, 1], "lookup: Object missing required field `model_name`"),
        ],
    )
    def test_a_request_of_no_known_release_is_named_once(
        self, client: Client, gateway: Gateway, operation: str, arguments: list[Any], unknown: str
    ) -> None:
        with capture_logs() as logged:
            for _ in range(3):
                client.ask_by_name(operation, *arguments)
        (seen,) = clients(gateway)
        assert seen.unknown.startswith(unknown)
        lines = [line for line in logged if line["event"] == "lmcache.unknown_release"]
        assert [line["sent"] for line in lines] == [seen.unknown]

    def test_a_refused_client_is_shown_after_it_has_gone(self, client: Client, gateway: Gateway) -> None:
        with gateway.client() as other:
            other.ask("prepare_store", {}, 7)
        gateway.until(lambda: len(gateway.server.connections) == 1, "the connection closes")
        gone, here = clients(gateway)
        assert (gone.connected, gone.refused, here.connected, here.refused) == (False, 1, True, 0)

    def test_a_registration_that_is_refused_counts(self, client: Client, gateway: Gateway) -> None:
        client.ask("register_kv_cache_engine_driven_context", context(dtype_str="float7"))
        assert client.call("register_kv_cache", *map(packed, [1, [], "llama", 1, "vllm", None, []])) == []
        (seen,) = clients(gateway)
        assert seen.refused == 2
        assert msgspec.json.encode(seen)
