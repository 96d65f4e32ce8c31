"""KV events of a real data plane, as a router receives them: stores, evictions, a kill, a stop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack

import pytest
import zmq

from dataplane.kv_events.messages import block_hash
from dataplane.kv_events.stream import END
from tests.dataplane import blocks
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect
from tests.dataplane.kv_events.decoders import Decoded, aibrix, dynamo, llm_d
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.recovery.support.harness import supervised
from tests.forked import run
from tests.lmcache.client import Client, prompt
from tests.lmcache.planes import gateway_plane, url_of

PAGE = 4096
WAIT_MS = 15_000


@dataclass
class Router:
    """A subscriber that applies every event."""

    socket: zmq.Socket[bytes]
    decode: Callable[[bytes], list[Decoded]] = llm_d
    known: set[int] = field(default_factory=set)
    numbers: list[int] = field(default_factory=list)
    topics: set[str] = field(default_factory=set)
    events: list[Decoded] = field(default_factory=list)

    def take(self) -> None:
        """Return the next batch."""
        assert self.socket.poll(WAIT_MS), "a batch comes"
        topic, number, payload = self.socket.recv_multipart()
        self.numbers.append(int.from_bytes(number, "big"))
        self.topics.add(topic.decode())
        for event in self.decode(payload):
            self.events.append(event)
            if event.kind == "BlockStored":
                self.known.update(event.hashes)
            elif event.kind == "BlockRemoved":
                self.known.difference_update(event.hashes)
            else:
                self.known.clear()

    def until(self, known: set[int]) -> None:
        for _ in range(10_000):
            if self.known == known:
                return
            self.take()
        raise AssertionError("the router knows what is cached")


@contextmanager
def router(url: str, decode: Callable[[bytes], list[Decoded]] = llm_d) -> Iterator[Router]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"kv@")
    socket.connect(url)
    try:
        yield Router(socket, decode)
    finally:
        socket.close(linger=0)
        context.term()


def events_url(folder: Path) -> str:
    return f"ipc://{folder / 'kv.sock'}"


def replay_url(folder: Path) -> str:
    return f"ipc://{folder / 'kv-replay.sock'}"


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {
        "kv_events_url": events_url(folder),
        "dataplane__kv_events_replay_url": replay_url(folder),
        "dataplane__node": "n1",
        **{f"dataplane__kv_events_{name}": value for name, value in more.items()},
    }


def store(plane: Plane, chain: list[bytes], nbytes: int = PAGE) -> None:
    with connect(plane) as engine:
        blocks.store(engine, chain, nbytes)


def hashes(chain: list[bytes]) -> set[int]:
    return {block_hash(key) for key in chain}


@pytest.mark.parametrize(("layout", "decode"), [("map", llm_d), ("array", aibrix)])
def test_a_router_follows_stores_and_evictions(
    make_plane: Callable[..., Plane], socket_dir: Path, layout: str, decode: Callable[[bytes], list[Decoded]]
):
    plane = make_plane(**settings(socket_dir, format=layout), pool_bytes="4MiB")
    with router(events_url(socket_dir), decode) as seen:
        plane.start()
        store(plane, make.keys(10), 256 * 1024)
        seen.until(hashes(make.keys(10)))
        assert seen.topics == {"kv@n1@llama"}
        store(plane, make.keys(14, "more"), 256 * 1024)
        with plane.manager() as manager:
            cached = manager.describe().totals
        assert cached.evicted_blocks == 8
        while (
            sum(len(event.hashes) for event in seen.events if event.kind == "BlockRemoved") < 8 or len(seen.known) < 16
        ):
            seen.take()  # fails if nothing comes
        assert len(seen.known) == 16
        assert seen.numbers == list(range(len(seen.numbers)))
        assert plane.stop() == 0
        seen.until(set())
        assert "Traceback" not in plane.log()
    assert not (socket_dir / "kv.sock").exists()


def test_missed_events_are_replayed_to_a_late_subscriber_and_counted(
    make_plane: Callable[..., Plane], socket_dir: Path
):
    plane = make_plane(**settings(socket_dir)).start()
    store(plane, make.keys(3))
    plane.wait_stats(lambda stats: stats.kv_events is not None and stats.kv_events.published >= 2, "it is published")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    asking = context.socket(zmq.DEALER)
    asking.connect(replay_url(socket_dir))
    asking.send_multipart([b"", pack(">Q", 0)])
    events = []
    while True:
        assert asking.poll(WAIT_MS)
        _, topic, number, payload = asking.recv_multipart()
        if number == END:
            break
        assert topic == b"kv@n1@llama"
        events += llm_d(payload)
    asking.close(linger=0)
    context.term()
    assert [event.kind for event in events] == ["AllBlocksCleared", "BlockStored"]
    stats = plane.describe().kv_events
    assert stats is not None
    assert (stats.published, stats.dropped, stats.replayed) == (2, 0, 2)


def test_after_a_kill_all_blocks_are_cleared_and_cached_ones_published_again(socket_dir: Path):
    with router(events_url(socket_dir)) as seen, supervised(socket_dir, **settings(socket_dir)) as plane:
        store(plane, make.keys(40))
        seen.until(hashes(make.keys(40)))
        before = len(seen.events)
        plane.kill_plane()
        wait_for(lambda: plane.describe().adopted_blocks == 40, "the cache is gone on with")
        while len(seen.events) == before:
            seen.take()
        assert seen.events[before].kind == "AllBlocksCleared"
        seen.until(hashes(make.keys(40)))
        store(plane, make.keys(2, "later"))
        seen.until(hashes(make.keys(40)) | hashes(make.keys(2, "later")))


def test_a_cold_start_withdraws_events_of_the_previous_process(make_plane: Callable[..., Plane], socket_dir: Path):
    plane = make_plane(**settings(socket_dir)).start()
    with router(events_url(socket_dir)) as seen:
        store(plane, make.keys(5))
        seen.until(hashes(make.keys(5)))
        plane.kill()
        plane.start()
        seen.until(set())
        assert seen.events[-1].kind == "AllBlocksCleared"


def test_each_rank_has_a_socket_of_its_own(make_plane: Callable[..., Plane], socket_dir: Path):
    plane = make_plane(**settings(socket_dir, ranks="2"))
    with router(events_url(socket_dir)) as one, router(events_url(socket_dir) + "_dp1") as two:
        plane.start()
        store(plane, make.keys(3))
        one.until(hashes(make.keys(3)))
        two.until(hashes(make.keys(3)))


def test_token_ids_of_lmcache_clients_are_published_if_enabled(socket_dir: Path):
    tokens = prompt(3)
    with (
        router(events_url(socket_dir), lambda payload: dynamo(payload, 16)) as seen,
        gateway_plane(socket_dir, **settings(socket_dir, token_ids="true", block_tokens="16")) as plane,
        Client(url_of(plane)) as engine,
    ):
        engine.register()
        engine.prepare_store(tokens, cache_salt="acme")
        assert engine.commit_store(tokens, cache_salt="acme")
        while len(seen.known) < 48:
            seen.take()
        stored = [event for event in seen.events if event.kind == "BlockStored"]
        assert [token for event in stored for token in event.tokens] == list(tokens)[:768]
        assert stored[0].extra[0] == ["acme"]
        assert stored[0].block_size == 16
        assert len(stored[0].hashes) == len(stored[0].tokens) // 16


def test_token_ids_are_not_published_by_default(socket_dir: Path):
    tokens = prompt(3)
    with (
        router(events_url(socket_dir)) as seen,
        gateway_plane(socket_dir, **settings(socket_dir)) as plane,
        Client(url_of(plane)) as engine,
    ):
        engine.register()
        engine.prepare_store(tokens, cache_salt="acme")
        assert engine.commit_store(tokens, cache_salt="acme")
        while len(seen.known) < 3:
            seen.take()
        assert {(event.tokens, event.extra) for event in seen.events} == {((), None)}


def test_an_address_in_use_is_an_error_that_names_it_and_no_wrong_setting(socket_dir: Path):
    """The units of systemd do not start a service again that ends with 2, and the address may be free later."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        url = f"tcp://127.0.0.1:{port}"
        for setting, value, expected in (
            ("kv_events_url", url, f"{url} and no replay socket cannot be bound: Address already in use"),
            ("lmcache_port", port, f"{url} cannot be listened on: Address already in use"),
        ):
            ended = run("dataplane", env=Plane(socket_dir, {setting: value}).environ)
            assert (ended.returncode, f"{setting}: {expected}" in ended.stderr) == (1, True), ended.stderr


def test_malformed_replay_requests_do_not_affect_other_clients(make_plane: Callable[..., Plane], socket_dir: Path):
    plane = make_plane(**settings(socket_dir)).start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    asking = context.socket(zmq.DEALER)
    asking.connect(replay_url(socket_dir))
    for size in range(200):
        asking.send_multipart([b"x" * size] * (size % 7 + 1))
    asking.send(b"x" * 100_000)
    store(plane, make.keys(3))
    plane.wait_stats(
        lambda stats: stats.kv_events is not None and stats.kv_events.published >= 2, "events are published"
    )
    plane.wait_stats(lambda stats: stats.totals.malformed_messages > 100, "the requests are counted")
    asking.close(linger=0)
    context.term()
    assert "Traceback" not in plane.log()
