"""Frames: what goes over the wire, byte for byte, and how operations are distinguished."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from dataplane.gateways.lmcache.wire.operations import DIALECT_050, DIALECT_053, DIALECT_055, introduced_by
from tests.lmcache.client import NOTHING, Client, context, key, lookup_key, packed, prompt
from tests.lmcache.gateway import SHM_NAME, Gateway


def frames(text: str) -> list[bytes]:
    return [bytes.fromhex(each) for each in text.split()]


GOLDEN = {
    "get_chunk_size": ("02 15", "02 15 cd0100"),
    "get_chunk_size by name": ("06 ae6765745f6368756e6b5f73697a65", "06 ae6765745f6368756e6b5f73697a65 cd0100"),
    "get_chunk_size as a wider number": ("cc05 d200000015", "cc05 d200000015 cd0100"),
    "ping": ("03 16 c0", "03 16 c3"),
    "noop": ("04 18", "04 18 a24f4b"),
    "get_experimental": ("05 20", "05 20 90"),
    "get_experimental of 0.5.3": ("05 28", "05 28 90"),
    "query_prefetch_lookup_hits": ("0b 0b a27231", "0b 0b 00"),
    "cb_protocol_handshake": ("05 21 01", "05 21 9200c2"),
    "query_prefetch_status of an unknown request": ("0b 09 a27231", "0b 09 00"),
    "clear": ("0f 14 c3", "0f 14"),
    "clear without an argument": ("0f 14", "0f 14"),
    "end_session": ("cd1234 0d a27231", "cd1234 0d"),
}


_KEY = key([5] * 300)
NOT_COPIED = [packed([b"", False])]
_MISS = [packed({"prefix_coverage_tokens": 0, "non_prefix_segments": []})]
_BLEND_KV_CACHE = [7, [], "llama", 1]
_ROPE = [7, [], 64, True, [0], [[64]]]
REUSED: dict[int, dict[int, dict[str, tuple[list[Any], list[bytes]]]]] = {
    25: {
        21: {"cb_register_kv_cache": (_BLEND_KV_CACHE, []), "cb_register_rope": ([*_ROPE, [64], ""], [])},
        18: {"cb_lookup_pre_computed": ([_KEY], [packed([])])},
    },
    28: {
        21: {"cb_lookup_pre_computed": ([_KEY], [packed([])]), "cb_unified_lookup": ([_KEY, 1], _MISS)},
        18: {"cb_lookup_pre_computed_v2": ([_KEY], [packed([])])},
    },
    29: {
        21: {
            "cb_retrieve_pre_computed": ([_KEY, [[0, 256]], 0, 7, b""], NOT_COPIED),
            "p2p_lookup_and_lock": ([[], {0: {}}], [packed(0)]),
        },
        18: {"cb_retrieve_pre_computed_v2": ([_KEY, [], 0, 7, b""], NOT_COPIED)},
    },
    30: {
        21: {"cb_store_final": ([_KEY, 0, 7, b""], NOT_COPIED), "p2p_query_lookup_results": ([1], [])},
        18: {"cb_register_rope_v3": (_ROPE[:4], [])},
    },
    31: {
        21: {"cb_lookup_pre_computed_v2": ([_KEY], [packed([])]), "p2p_unlock_objects": ([[]], [])},
        18: {"cb_unregister_rope_v3": ([7], [])},
    },
    32: {
        21: {
            "get_experimental": ([], [packed([])]),
            "cb_retrieve_pre_computed_v2": ([_KEY, [], 0, 7, b""], NOT_COPIED),
        },
        18: {"cb_retrieve_pre_computed_v3": ([_KEY, [], [[0]], 7, b""], NOT_COPIED)},
    },
    33: {
        21: {"cb_register_rope_v3": (_ROPE, []), "cb_protocol_handshake": ([1], [packed([0, False])])},
        18: {"cb_unified_lookup": ([_KEY, 1], _MISS)},
    },
    36: {21: {"cb_unified_lookup": ([_KEY, 1], _MISS)}, 18: {"p2p_unlock_objects": ([[]], [])}},
}
"""Meaning of an operation number by the client's number of `get_chunk_size`, with arguments and answer."""


FAILURES: list[tuple[str, list[Any], Any]] = [
    ("prepare_store", [key(prompt(1)), 404], {"context": {}}),
    ("commit_store", [key(prompt(1)), 404, b""], False),
    ("prepare_retrieve", [key(prompt(1)), 404], {"success": False, "data": b"", "context": {}}),
    ("commit_retrieve", [key(prompt(1)), 404], False),
    ("store", [key(prompt(1)), 404, [[1]], b""], [b"", False]),
    ("retrieve", [key(prompt(1)), 404, [[1]], b"", 0], [b"", False]),
    ("lookup", [lookup_key(prompt(1), model_name="nobody"), 1], NOTHING),
    ("query_prefetch_status", ["nobody"], 0),
    ("wait_prefetch_status", ["nobody", 300.0], 0),
    ("register_kv_cache_engine_driven_context", [{"instance_id": 1}], {"shm_name": "", "pool_size": 0}),
    ("unregister_kv_cache_engine_driven_context", [404], NOTHING),
    ("unregister_kv_cache", [404], NOTHING),
    ("ping", ["who"], False),
    ("noop", ["too", "many"], NOTHING),
]


@pytest.mark.parametrize(("request_", "answer"), GOLDEN.values(), ids=GOLDEN.keys())
def test_a_request_is_answered_byte_for_byte(client: Client, request_: str, answer: str) -> None:
    client.send(frames(request_))
    assert client.receive() == frames(answer)


def test_a_look_up_and_its_status_are_answered_byte_for_byte(worker: Client) -> None:
    worker.store(prompt(2))
    worker.send([b"\x0a", b"\x08", packed(lookup_key(prompt(2), "r1")), b"\x01"])
    assert worker.receive() == [b"\x0a", b"\x08"]
    worker.send([b"\x0b", b"\x09", b"\xa2r1"])
    assert worker.receive() == [b"\x0b", b"\x09", b"\x02"]


def test_a_commit_from_shared_memory_is_answered_byte_for_byte(worker: Client) -> None:
    assert worker.prepare_store(prompt(1))["slots"]
    worker.send([b"\x09", b"\x11", packed(key(prompt(1))), b"\x07", b"\xc4\x00"])
    assert worker.receive() == [b"\x09", b"\x11", b"\xc3"]


def test_a_registration_names_the_segment_and_its_size(client: Client, gateway: Gateway) -> None:
    assert client.register() == {"shm_name": SHM_NAME, "pool_size": gateway.pool.nbytes}


def test_slots_have_an_address_and_a_chunk(worker: Client, gateway: Gateway) -> None:
    answer = worker.prepare_store(prompt(2))
    assert answer["chunk_indices"] == [0, 1]
    first, second = answer["slots"]
    assert first == {"offset": first["offset"], "length": 16_384, "shape": [2, 2, 256, 8], "dtype": "float16"}
    assert first["offset"] % 4096 == second["offset"] % 4096 == 0
    assert abs(first["offset"] - second["offset"]) >= 16_384


def test_a_model_with_one_plane_has_slots_of_one_plane(client: Client) -> None:
    client.register(use_mla=True, num_physical_slots=None)
    (slot,) = client.prepare_store(prompt(1))["slots"]
    assert (slot["shape"], slot["length"]) == ([2, 256, 8], 8192)


def test_operations_by_name_are_those_by_number(client: Client) -> None:
    assert client.ask_by_name("noop") == "OK"
    assert client.ask_by_name("ping", None) is True
    assert client.ask_by_name("lookup", lookup_key(prompt(1)), 1) is NOTHING
    assert client.ask_by_name("query_prefetch_status", "r") == 0


def test_every_failure_is_answered(worker: Client) -> None:
    for operation, arguments, answer in FAILURES:
        assert worker.ask(operation, *arguments) == answer, operation


@pytest.mark.parametrize("operation", [0, 41, 99, 2**40, "cb_plan", "", "call", "__init__"])
def test_an_unknown_operation_is_answered_without_a_result(client: Client, operation: int | str) -> None:
    assert client.call(operation, packed(1)) == []


@pytest.mark.parametrize("operation", [b"\xc0", b"\xc3", b"\x91\x01", b"\xc1", b"\xff", b"\xd9\xff", b"\xa2\xff\xff"])
def test_an_unknown_operation_is_answered(client: Client, operation: bytes) -> None:
    client.send([b"\x01", operation])
    assert client.receive() == [b"\x01", operation]


def test_stream_messages_are_not_requests(client: Client) -> None:
    client.send([b"\x01", b"", b"ack"])
    client.send([b"\x02", b"", b"cancel"])
    assert client.ask("noop") == "OK"


def test_a_uid_alone_is_given_back(client: Client) -> None:
    client.send([b"\x05"])
    assert client.receive() == [b"\x05", b""]


def test_any_uid_is_echoed(client: Client) -> None:
    for uid in (b"\x00", packed(2**64 - 1), b"\xc0", b"x" * 300, b""):
        client.send([uid, b"\x18"])
        assert client.receive() == [uid, b"\x18", packed("OK")]


def test_an_invalid_uid_or_operation_is_not_echoed(client: Client) -> None:
    client.send([b"x" * 1025, b"\x18"])
    client.send([b"\x01", b"\xda\x04\x10" + b"x" * 1040])
    assert client.ask("noop") == "OK"


def test_an_uid_that_is_used_twice_has_two_answers(client: Client) -> None:
    for _ in range(2):
        client.send([b"\x07", b"\x18"])
    assert [client.receive() for _ in range(2)] == 2 * [[b"\x07", b"\x18", packed("OK")]]


def test_more_frames_than_any_operation_has_are_one_wrong_request(client: Client) -> None:
    client.send([b"\x01", b"\x18", *[b"\x00"] * 3000])
    assert client.receive() == [b"\x01", b"\x18"]
    assert client.ask("noop") == "OK"


class TestDialects:
    def test_the_first_request_determines_the_numbers_of_a_client(self) -> None:
        assert introduced_by(21, 0) == (DIALECT_055, DIALECT_053)
        assert introduced_by(18, 0) == (DIALECT_050,)
        assert introduced_by(18, 2) == ()
        assert introduced_by(99, 0) == ()

    def test_a_client_of_0_5_0_is_served_by_its_own_numbers(self, gateway: Gateway) -> None:
        with gateway.client(greet=False) as old:
            assert old.call(18) == [packed(256)]
            (answer,) = old.call(11, packed(_old_context()))
            assert msgspec.msgpack.decode(answer)["shm_name"] == SHM_NAME
            tokens = packed(_old_key(prompt(1)))
            (answer,) = old.call(13, tokens, packed(3))
            assert len(msgspec.msgpack.decode(answer)["context"]["slots"]) == 1
            assert old.call(14, tokens, packed(3), packed(b"")) == [b"\xc3"]
            assert old.call(5, packed({**_old_key(prompt(1)), "worker_id": None}), packed(1)) == []
            assert old.call(6, packed("r")) == [packed(1)]
            (answer,) = old.call(15, tokens, packed(3))
            assert msgspec.msgpack.decode(answer)["success"] is True
            assert old.call(16, tokens, packed(3)) == [b"\xc3"]
            assert old.call(19, packed(3)) == [b"\xc3"]
            assert old.call(21) == [packed("OK")]
            assert old.call(10, packed("r")) == []
            assert old.call(12, packed(3)) == []

    def test_requests_that_waited_for_a_new_data_plane_tell_their_dialect_by_their_form(self, gateway: Gateway) -> None:
        with gateway.client() as new, gateway.client(greet=False) as old:
            new.register(3)
            new.store(prompt(1), instance=3)
            # 5 is a look-up since 0.5.0, and a store of hidden states since 0.5.3.
            assert old.call(5, packed({**_old_key(prompt(1)), "worker_id": None}), packed(1)) == []
            assert old.call(6, packed("r")) == [packed(1)]
            (answer,) = old.call(15, packed(_old_key(prompt(1))), packed(3))
            assert msgspec.msgpack.decode(answer)["success"] is True

    def test_numbers_that_a_dialect_lacks_are_unknown(self, gateway: Gateway) -> None:
        with gateway.client(greet=False) as old:
            assert old.call(18) == [packed(256)]
            with capture_logs() as logged:
                assert old.call(40) == []
        assert [line["message"] for line in logged if line["event"] == "lmcache.failed"] == ["unknown operation 40"]
        operations = {each.operation: each.failures for each in gateway.server.stats(0.0).operations}
        assert operations["unknown"] == {"unknown_operation": 1}

    @pytest.mark.parametrize("number", REUSED)
    def test_a_number_that_releases_reuse_is_answered_as_its_client_means_it(
        self, gateway: Gateway, number: int
    ) -> None:
        for greeting, meanings in REUSED[number].items():
            for operation, (arguments, answer) in meanings.items():
                with gateway.client(greet=False) as client:
                    assert client.call(greeting) == [packed(256)]
                    assert client.call(number, *map(packed, arguments)) == answer, operation
        failed = {each.operation: each.failures for each in gateway.server.stats(0.0).operations}
        named = {operation for meanings in REUSED[number].values() for operation in meanings}
        assert {name for name in named if failed[name]} == named - {"get_experimental"}
        assert all(failed[name].keys() == {"unsupported"} for name in named - {"get_experimental"})

    def test_requests_of_a_connection_are_distinguished_by_their_form(self, client: Client) -> None:
        for _ in range(2):
            assert client.call(32) == [packed([])]
            assert client.call(32, *map(packed, [key(prompt(1)), [], 0, 7, b""])) == NOT_COPIED
            assert client.call(40) == [packed([])]


def _old_context() -> dict[str, object]:
    return {name: value for name, value in context(3).items() if name != "num_physical_slots"}


def _old_key(tokens: list[int]) -> dict[str, Any]:
    return {
        name: value
        for name, value in key(tokens).items()
        if name not in ("request_configs", "num_kv_readers", "cache_salt")
    }
