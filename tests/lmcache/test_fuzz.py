"""Everything wrong that a peer can say, said to a real data plane: each request has one answer, and the node lives."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import zmq

from dataplane.gateways.lmcache.wire.operations import BY_NAME, OPERATIONS
from tests.dataplane.plane import Plane
from tests.lmcache.client import NUMBERS, Client, context, in_bytes, key, lookup_key, packed, prompt
from tests.lmcache.engine_memory import EngineMemory
from tests.lmcache.planes import gateway_plane, gateway_stats, url_of
from tests.run_marks import short_folder
from tests.sizes import size

TOKENS = prompt(2)
BLOCKS = [[1, 2, 3]]
GOOD: dict[str, list[Any]] = {
    "unregister_kv_cache": [99],
    "register_q_cache": [1, [], "llama", 1, "vllm", {}, []],
    "unregister_q_cache": [1],
    "store_q": [key(TOKENS), 1, BLOCKS, b""],
    "store": [key(TOKENS), 1, BLOCKS, b""],
    "retrieve": [in_bytes(key(TOKENS)), 1, BLOCKS, b"", 0],
    "lookup": [in_bytes(lookup_key(TOKENS)), 1],
    "query_prefetch_status": ["r"],
    "wait_prefetch_status": ["r", 0.5],
    "free_lookup_locks": [lookup_key(TOKENS), 1, [[0, 256]]],
    "end_session": ["r"],
    "register_kv_cache_engine_driven_context": [context(1)],
    "unregister_kv_cache_engine_driven_context": [99],
    "prepare_store": [in_bytes(key(TOKENS)), 1, []],
    "commit_store": [key(TOKENS), 1, b""],
    "prepare_retrieve": [key(TOKENS), 1],
    "commit_retrieve": [key(TOKENS), 1],
    "clear": [False],
    "get_chunk_size": [],
    "negotiate_chunk_size": [16],
    "ping": [1],
    "report_block_allocation": [1, "llama", [{"req_id": "r", "new_block_ids": [1], "new_token_ids": [5]}]],
    "noop": [],
    "get_experimental": [],
}
"""A request of each operation that is well formed."""
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**64 - 1,
    -(2**63),
    1.5,
    float("nan"),
    float("inf"),
    "",
    "text",
    "x" * 5000,
    "\0",
    "ü\u202e",
    b"",
    b"\xff" * 50,
    [],
    [[]],
    [None],
    [1] * 5000,
    {},
    {"a": 1},
    {1: 2},
    {"token_ids": [1, 2, 3]},
    {"token_bytes": b"123"},
    msgspec.msgpack.Ext(1, b"\x80\x04x"),
    msgspec.msgpack.Ext(-1, b"\0" * 8),
]
RAW = [
    b"",
    b"\xc1",
    b"\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\x91" * 2000,
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
]
"""What is no MessagePack, or not all of it."""


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with short_folder() as folder, gateway_plane(folder) as running:
        yield running
        assert running.alive, running.log()
        assert running.describe().gateway is not None
        internal = {
            each.operation: each.failures for each in gateway_stats(running).operations if "internal" in each.failures
        }
        assert not internal, running.log()
        assert "Traceback" not in running.log()


@pytest.fixture(scope="module")
def connected(plane: Plane) -> Iterator[Client]:
    """One connection for all tests: the data plane looks in all processes of the machine for the owner of each."""
    with Client(url_of(plane)) as client:
        yield client


@pytest.fixture
def client(connected: Client) -> Client:
    connected.register(1)
    return connected


class Talk:
    """Sends requests ahead and holds each answer against its request."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[bytes, bytes] = {}
        self._count = 1_000_000  # above the numbers that the client gives its own requests

    def say(self, operation: bytes, *frames: bytes) -> None:
        self._count += 1
        uid = packed(self._count)
        self._waiting[uid] = operation
        self._client.send([uid, operation, *frames])
        if len(self._waiting) >= 100:
            self.settle()

    def settle(self) -> None:
        """Every request has one answer, and nothing else comes."""
        while self._waiting:
            uid, operation, *rest = self._client.receive()
            assert self._waiting.pop(uid) == operation
            assert len(rest) <= 1
        assert self._client.ask("noop") == "OK"


def test_every_operation_is_in_this_test() -> None:
    assert GOOD.keys() | {"register_kv_cache"} == NUMBERS.keys()
    assert NUMBERS.keys() == {each.name for each in OPERATIONS if each.served} | {"register_q_cache", "store_q"}
    assert len(BY_NAME) == len(OPERATIONS)


@pytest.mark.parametrize("operation", GOOD)
def test_every_argument_may_be_anything(client: Client, operation: str) -> None:
    talk, number = Talk(client), packed(NUMBERS[operation])
    good = [packed(each) for each in GOOD[operation]]
    for at in range(len(good)):
        for odd in ODD:
            talk.say(number, *good[:at], packed(odd), *good[at + 1 :])
        for raw in RAW:
            talk.say(number, *good[:at], raw, *good[at + 1 :])
    talk.settle()


@pytest.mark.parametrize("operation", GOOD)
def test_there_may_be_any_number_of_arguments(client: Client, operation: str) -> None:
    talk, number = Talk(client), packed(NUMBERS[operation])
    good = [packed(each) for each in GOOD[operation]]
    for count in range(len(good)):
        talk.say(number, *good[:count])
    for more in (1, 2, 20):
        talk.say(number, *good, *[b"\xc0"] * more)
        talk.say(packed(operation), *good, *[b"\xc0"] * more)
    talk.settle()


@pytest.mark.parametrize("operation", [each for each in GOOD if GOOD[each] and isinstance(GOOD[each][0], dict)])
def test_every_field_may_be_anything_or_missing(client: Client, operation: str) -> None:
    talk, number = Talk(client), packed(NUMBERS[operation])
    good = GOOD[operation]
    rest = [packed(each) for each in good[1:]]
    for name in good[0]:
        talk.say(number, packed({field: value for field, value in good[0].items() if field != name}), *rest)
        for odd in ODD:
            talk.say(number, packed({**good[0], name: odd}), *rest)
        for raw in RAW:
            talk.say(number, packed({**good[0], name: msgspec.Raw(raw)}), *rest)
    talk.say(number, packed({**good[0], "unknown": {"deep": [1, [2, {"er": None}]]}}), *rest)
    talk.settle()


def test_a_registration_of_memory_may_be_anything(client: Client) -> None:
    with EngineMemory() as memory:
        talk, good = Talk(client), memory.registration(5)
        frames = [packed(each) for each in good]
        for at in range(len(good)):
            for odd in ODD:
                talk.say(b"\x01", *frames[:at], packed(odd), *frames[at + 1 :])
            for raw in RAW:
                talk.say(b"\x01", *frames[:at], raw, *frames[at + 1 :])
        described = memory.describe(0)
        for name in (*described, *described["metadata"]):
            for odd in ODD:
                changes = {name: odd} if name in described else {"metadata": {**described["metadata"], name: odd}}
                body = packed({**described, **changes})
                talk.say(b"\x01", frames[0], packed([msgspec.msgpack.Ext(1, body)]), *frames[2:])
        talk.settle()


@pytest.mark.parametrize("seed", range(size(6, 2)))
def test_frames_with_some_bytes_changed_are_answered(client: Client, seed: int) -> None:
    talk, chance = Talk(client), random.Random(seed)
    for _ in range(1500):
        operation = chance.choice(sorted(GOOD))
        frames = [packed(each) for each in GOOD[operation]]
        for _ in range(chance.randrange(1, 4)):
            if not frames:
                break
            at = chance.randrange(len(frames))
            frame = bytearray(frames[at])
            change = chance.randrange(4)
            if change == 0 and frame:
                frame[chance.randrange(len(frame))] = chance.randrange(256)
            elif change == 1:
                del frame[chance.randrange(len(frame) + 1) :]
            elif change == 2:
                frame += chance.randbytes(chance.randrange(20))
            else:
                where = chance.randrange(len(frame) + 1)
                frame[where:where] = chance.randbytes(chance.randrange(6))
            frames[at] = bytes(frame)
        number = packed(NUMBERS[operation]) if chance.random() < 0.9 else chance.randbytes(chance.randrange(1, 6))
        talk.say(number, *frames)
    talk.settle()


def test_numbers_of_all_dialects_with_anything_behind_them_are_answered(client: Client) -> None:
    with Client(client.socket.getsockopt_string(zmq.LAST_ENDPOINT), greet=False) as other:
        talk, chance = Talk(other), random.Random(9)
        good = [packed(argument) for arguments in GOOD.values() for argument in arguments]
        for _ in range(size(3000, 1000)):
            frames = [chance.choice(good) for _ in range(chance.randrange(5))]
            talk.say(packed(chance.randrange(45)), *frames)
        talk.settle()


@pytest.mark.parametrize("form", [dict, in_bytes], ids=["token_ids", "token_bytes"])
def test_a_million_tokens_are_served_and_more_are_refused(client: Client, form: Callable[..., dict[str, Any]]) -> None:
    name = 6 + (form is dict)
    most = form(key([name] * (1 << 20), "long"))
    frames = client.call(16, packed({**most, "end": 512}), packed(1))
    assert len(msgspec.msgpack.decode(frames[0])["context"]["slots"]) == 2
    frames = client.call(16, packed(form(key([name] * ((1 << 20) + 1), "longer"))), packed(1))
    assert msgspec.msgpack.decode(frames[0]) == {"context": {}}


def test_a_meaningless_frame_of_megabytes_is_answered(client: Client) -> None:
    assert client.call(17, packed(key(TOKENS)), packed(1), packed(b"\0" * (32 << 20))) == [b"\xc2"]
    assert client.call(23, packed(1), packed("llama"), packed([0] * 4_000_000)) == []


def test_a_frame_beyond_the_bound_costs_its_sender_the_connection_alone(plane: Plane, client: Client) -> None:
    with Client(url_of(plane)) as other:
        other.send([b"\x01", b"\x18", b"\0" * ((64 << 20) + 1)])
        other.wait_lost()
        assert other.ask("noop") == "OK"
    assert client.ask("noop") == "OK"


def test_other_protocols_on_the_port_are_shut_out(plane: Plane, client: Client) -> None:
    port = int(plane.settings["lmcache_port"])
    for words in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 64,
        b"\0" * 100,
        b"\xff" + b"\0" * 8 + b"\x7f\x01NULL",
    ):
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.sendall(words)
            peer.settimeout(0.2)
            with suppress(OSError):
                while peer.recv(4096):
                    pass
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for kind in (zmq.SUB, zmq.PUSH, zmq.ROUTER):
        unknown = context.socket(kind)
        unknown.linger = 0
        unknown.connect(url_of(plane))
        if kind == zmq.PUSH:
            unknown.poll(100, zmq.POLLOUT)
        unknown.close()
    request = context.socket(zmq.REQ)
    request.linger = 0
    request.connect(url_of(plane))
    request.send_multipart([b"\x01", b"\x18"])
    request.poll(100)  # its empty delimiter is a uid like any other
    request.close()
    context.term()
    assert client.ask("noop") == "OK"


def test_a_client_that_reads_no_answers_does_not_hold_up_others(plane: Plane, client: Client) -> None:
    with Client(url_of(plane)) as silent:
        silent.socket.rcvhwm = 1
        for at in range(20_000):
            silent.send([packed(at), b"\x15"])
        assert client.ask("noop") == "OK"
        assert client.ask("ping", 1) is True
    assert client.ask("noop") == "OK"


def test_failures_are_counted_by_operation_and_reason(plane: Plane, client: Client) -> None:
    client.call(16, b"\xc0", b"\xc0")
    client.call(99)
    client.ask("commit_store", key(TOKENS), 777, b"")
    operations = {each.operation: each for each in gateway_stats(plane).operations}
    assert operations["prepare_store"].failures["bad_arguments"] >= 1
    assert operations["unknown"].failures["unknown_operation"] >= 1
    assert operations["commit_store"].failures["unknown_instance"] >= 1
    for each in operations.values():
        assert sum(each.buckets) <= each.requests
        assert each.seconds >= 0
