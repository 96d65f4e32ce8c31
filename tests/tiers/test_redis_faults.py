"""What the tier for Redis does when a server or the network fails. No message ever contains the password."""

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from dataplane.protocol.stored_blocks import Loaded, Outcome
from dataplane.tiers.redis.connection import BlockConnection
from dataplane.tiers.redis.parameters import RedisParameters
from dataplane.tiers.redis.resp import ReplyReader, TimedSocket, packed
from dataplane.tiers.redis.tier import RedisTier
from dataplane.tiers.registry import ParameterError, TierContext, open_tier
from dataplane.tiers.tier import BlockLoad, BlockStore, TierError
from dataplane.tiers.values import value_name
from tests.threads import join
from tests.tiers.blocks import CLUSTER, assert_holds, assert_lacks, block, load, name, soon, store
from tests.tiers.redis_server import SLOTS, RedisServer, redis_cluster, redis_server, unused_address, wait_until
from tests.tiers.shared_faults import MIB, SHORT_S, SharedTierFaults, failure_of
from tests.tiers.tcp_proxy import scripted_server, tcp_proxy

SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server("--requirepass", SECRET, password=SECRET) as running:
        yield running


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Open tiers, which are closed at the end. The password of the server is in the environment."""
    monkeypatch.setenv("LARDER_TEST_REDIS", SECRET)
    opened = []

    def open_one(*servers: str, identity: bytes = CLUSTER, **more: Any) -> RedisTier:
        parameters = {
            "servers": servers,
            "password": "env:LARDER_TEST_REDIS",
            "connect_timeout_s": 30.0,  # on a busy machine
            **more,
        }
        tier = open_tier("redis", parameters, TierContext(identity, "node-1", 0))
        assert isinstance(tier, RedisTier)
        opened.append(tier)
        return tier

    yield open_one
    for tier in opened:
        tier.close()


def fails(tier: RedisTier) -> str:
    return failure_of(tier, [SECRET])


class TestSharedFaults(SharedTierFaults):
    def place(self, number: int) -> dict[str, Any]:
        return {"database": number + 4}


def test_a_server_that_is_gone_is_named(tiers: Any) -> None:
    address = unused_address()
    assert f"Redis server {address}: cannot connect" in fails(tiers(address))


def test_a_host_without_an_address_is_named(tiers: Any) -> None:
    assert "Redis server nowhere.invalid:6379: cannot connect" in fails(tiers("nowhere.invalid:6379"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"password": "env:LARDER_TEST_OTHER"}, "the username or the password is wrong"),
        ({"password": ""}, "the server asks for a password: set password"),
        ({"username": "nobody"}, "the username or the password is wrong"),
        ({"database": 9999}, "the server has no database of this number"),
        ({"password": "env:LARDER_TEST_UNSET"}, "the environment variable LARDER_TEST_UNSET is not set"),
        ({"password": "file:/nowhere/secret"}, "cannot read /nowhere/secret: No such file or directory"),
    ],
)
def test_a_refused_connection_names_the_wrong_parameter(
    tiers: Any, server: RedisServer, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("LARDER_TEST_OTHER", f"{SECRET}-old")
    assert message in fails(tiers(server.address, **parameters))


def test_a_password_may_have_any_bytes(tiers: Any, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    password = b"no \xff UTF-8"
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "bytes", "on", b">" + password, "~*", "+@all")
    monkeypatch.setitem(os.environb, b"LARDER_TEST_OTHER", password)
    tier = tiers(server.address, username="bytes", password="env:LARDER_TEST_OTHER")
    assert store(tier, block(1, 100)) == [Outcome.OK]


def test_a_server_without_users_gets_the_password_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_TEST_REDIS", SECRET)
    answers = b"-ERR wrong number of arguments for 'auth' command\r\n+OK\r\n+PONG\r\n"
    with scripted_server(answers, stays_open=True) as old:
        parameters = RedisParameters(servers=[old.address], username="larder", password="env:LARDER_TEST_REDIS")
        BlockConnection(("127.0.0.1", old.port), parameters, soon()).close()
        alone = packed(b"AUTH", SECRET.encode())
        wait_until(lambda: alone in old.received, "the server receives the password alone")


def test_a_password_that_the_server_does_not_want_is_reported(tiers: Any) -> None:
    with redis_server() as open_server:
        assert "the server has no password for this user" in fails(tiers(open_server.address))


def test_a_user_without_permission_is_reported(tiers: Any, server: RedisServer) -> None:
    with server.client() as client:
        client.acl_setuser("reader", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], commands=["+get"])
    with pytest.raises(TierError, match="the user has no permission"):
        store(tiers(server.address, username="reader"), block(1, 100))


def test_a_password_of_a_file_is_read_again_for_each_connection(
    tiers: Any, server: RedisServer, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("an old password\n")
    file.chmod(0o600)
    tier = tiers(server.address, password=f"file:{file}")
    assert "the username or the password is wrong" in fails(tier)
    file.write_text(f"{SECRET}\n")
    wait_until(lambda: tier.health(soon()).ok, "the new password is used")


def test_a_password_file_that_others_can_read_is_refused(tiers: Any, server: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    file.chmod(0o644)
    assert "expected mode 0600" in fails(tiers(server.address, password=f"file:{file}"))


@pytest.mark.parametrize(
    ("servers", "more", "field"),
    [
        ([], {}, "servers"),
        (["host"], {}, "servers[0]"),
        ([f"redis://:{SECRET}@host:1"], {}, "servers[0]"),
        (["host:1"], {"password": SECRET}, "password"),
        (["host:1"], {"password": f"env:{SECRET}"}, "password"),
        (["host:1"], {"password": "", "username": "larder"}, "password"),
        (["host:1"], {"cluster": True, "database": 1}, "database"),
        (["host:1", "host:2"], {}, "servers"),
        (["host:1"], {"ca_file": "/etc/ca.pem"}, "tls"),
        (["host:1"], {"ttl_s": -1}, "ttl_s"),
        (["host:1"], {"ttl_s": 1 << 62}, "ttl_s"),
        (["host:1"], {"connect_timeout_s": 1e300}, "connect_timeout_s"),
        (["host:1"], {"max_in_flight_bytes": 1 << 62}, "max_in_flight_bytes"),
        (["host:0"], {}, "servers"),
        (["host:65536"], {}, "servers"),
    ],
)
def test_a_parameter_that_is_wrong_is_named_and_not_shown(
    tiers: Any, servers: list[str], more: dict[str, Any], field: str
) -> None:
    with pytest.raises(ParameterError, match=rf"^{re.escape(field)}: ") as caught:
        tiers(*servers, **more)
    assert SECRET not in str(caught.value)


def test_a_certificate_that_is_not_trusted_is_reported(tiers: Any) -> None:
    with redis_server(tls=True) as tls_server:
        message = fails(tiers(tls_server.address, password="", tls=True))
    assert "the server's certificate is not trusted" in message


def test_a_certificate_of_another_host_is_reported(tiers: Any) -> None:
    with redis_server(tls=True) as server:
        trust = {"password": "", "tls": True, "ca_file": str(server.certificate)}
        message = fails(tiers(f"localhost:{server.port}", **trust))
    assert "the server's certificate is not trusted: Hostname mismatch" in message


def test_a_server_that_demands_a_certificate_gets_one(tiers: Any) -> None:
    with redis_server(tls=True, client_certificates=True) as strict:
        certificate = str(strict.certificate)
        trust = {"password": "", "tls": True, "ca_file": certificate}
        own = {"certificate_file": certificate, "key_file": str(strict.folder / "key.pem")}
        assert store(tiers(strict.address, **trust, **own), block(1, 100)) == [Outcome.OK]
        assert strict.address in fails(tiers(strict.address, **trust))
        missing = trust | {"ca_file": "/nowhere/ca.pem"}
        assert "ca_file: cannot read /nowhere/ca.pem: No such file or directory" in fails(
            tiers(strict.address, **missing)
        )


def test_a_server_that_comes_back_has_lost_the_blocks_and_takes_new_ones(tiers: Any) -> None:
    with redis_server() as server:
        tier = tiers(server.address, password="")
        lost, surviving = block(1, 100_000), block(2, 100_000)
        store(tier, lost)
        assert tier.usage().blocks == 1
        server.kill()
        server.start()
        assert load(tier, lost)[0] == Loaded(Outcome.MISSING)
        assert tier.usage().blocks == 0
        server.kill()
        assert "cannot connect" in fails(tier)
        server.start()
        wait_until(lambda: tier.health(soon()).ok, "the tier reconnects")
        assert store(tier, surviving) == [Outcome.OK]
        assert_holds(tier, [surviving])


def test_a_block_that_the_server_evicted_is_a_miss(tiers: Any) -> None:
    with redis_server("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru") as server:
        tier = tiers(server.address, password="")
        stored = [block(number, MIB) for number in range(16)]
        assert store(tier, *stored) == [Outcome.OK] * 16
        outcomes = [load(tier, each)[0].outcome for each in stored]
        assert set(outcomes) == {Outcome.OK, Outcome.MISSING}
        assert tier.usage().blocks == outcomes.count(Outcome.OK)


def test_a_server_without_memory_is_full(tiers: Any) -> None:
    with redis_server("--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as server:
        tier = tiers(server.address, password="")
        stored = [block(number, MIB) for number in range(12)]
        outcomes = store(tier, *stored)
        assert set(outcomes) == {Outcome.OK, Outcome.FULL}
        assert tier.usage().blocks == outcomes.count(Outcome.OK)
        assert_holds(tier, [each for each, outcome in zip(stored, outcomes, strict=True) if outcome is Outcome.OK])
        assert_lacks(tier, [each for each, outcome in zip(stored, outcomes, strict=True) if outcome is Outcome.FULL])


def test_a_server_that_accepts_and_never_answers_is_given_up_after_the_connect_timeout(tiers: Any) -> None:
    with scripted_server(b"", stays_open=True) as mute:
        assert "no answer within 0.3 s" in fails(tiers(mute.address, connect_timeout_s=0.3))


@contextmanager
def full_listener() -> Iterator[int]:
    """Give a port that loses the packets of whoever connects: the kernel drops them when its queue is full."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        try:
            while True:
                opened.enter_context(socket.create_connection(listener.getsockname(), 0.2))
        except TimeoutError:
            yield listener.getsockname()[1]


def resolves_to(monkeypatch: pytest.MonkeyPatch, *ports: int) -> list[tuple[str, int]]:
    """Let the name of every server stand for several addresses. Return what is looked up."""
    looked_up = []
    found = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port)) for port in ports]

    def resolve(host: str, port: int, **_: Any) -> Any:
        looked_up.append((host, port))
        return found

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return looked_up


@pytest.mark.parametrize("tls", [False, True])
def test_an_address_that_loses_packets_leaves_time_for_the_next(
    tiers: Any, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    with redis_server(tls=tls) as server, full_listener() as lost:
        trust = {"tls": True, "ca_file": str(server.certificate)} if tls else {}
        tier = tiers(server.address, password="", **trust)
        resolves_to(monkeypatch, lost, *[server.port] * 59)  # so that the first gets half a second of 30
        assert store(tier, block(1, 100)) == [Outcome.OK]


@pytest.mark.parametrize("tls", [False, True])
def test_all_addresses_share_the_time_of_a_call(tiers: Any, monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    with scripted_server(b"", stays_open=True) as mute, full_listener() as lost:
        tier = tiers(mute.address, password="", tls=tls)
        resolves_to(monkeypatch, *[lost] * 20, mute.port)
        began = time.monotonic()
        assert tier.store([block(1, 100)], began + SHORT_S) == [Outcome.LATE]
        assert time.monotonic() - began < 10 * SHORT_S


def test_an_address_of_ipv6_is_looked_up_without_brackets(
    tiers: Any, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = resolves_to(monkeypatch, server.port)
    assert store(tiers("[::1]:6379"), block(1, 100)) == [Outcome.OK]
    assert looked_up == [("::1", 6379)]


def test_a_connection_that_is_cut_is_replaced_once(tiers: Any, server: RedisServer) -> None:
    with tcp_proxy(server.port) as proxy:
        # One request at a time: none is sent, and lost without a reply, after the connection was cut.
        tier = tiers(proxy.address, max_in_flight_bytes=1)
        stored = [block(number, 100_000) for number in range(4)]
        store(tier, *stored)
        proxy.drop()
        assert_holds(tier, stored)
        proxy.cut_after = 250_000
        proxy.drop()
        loads = [BlockLoad(each.block.name, memoryview(bytearray(100_000))) for each in stored]
        assert [loaded.outcome for loaded in tier.load(loads, soon())] == [Outcome.OK] * 4
        proxy.cut_after = 50_000
        proxy.drop()
        assert load(tier, stored[0])[0] == Loaded(Outcome.FAILED)
        proxy.cut_after = None
        assert_holds(tier, stored)


GARBAGE = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x00\xff\xfe\r\n\r\n",
    b"$abc\r\n",
    b"$-7\r\n",
    b"$99999999999999\r\n",
    b"*1\r\n" * 5000,
    b"-\r\n",
    b":\r\n",
    b"-MOVED nonsense\r\n",
]


@pytest.mark.parametrize("answer", GARBAGE, ids=lambda answer: repr(answer[:12]))
def test_a_server_other_than_redis_is_reported(tiers: Any, answer: bytes) -> None:
    with scripted_server(answer) as strange:
        assert f"Redis server {strange.address}: " in fails(tiers(strange.address))


@pytest.mark.parametrize("answers", [b"+QUEUED\r\n", b":1\r\n", b"+OK\r\n$-1\r\n"])
def test_another_answer_than_ok_to_auth_or_select_is_reported(tiers: Any, answers: bytes) -> None:
    with scripted_server(answers + b"+PONG\r\n", stays_open=True) as strange:
        message = fails(tiers(strange.address, database=1))
    assert "the server answers, but not in the protocol of Redis" in message


def test_a_line_without_an_end_is_given_up(tiers: Any) -> None:
    with scripted_server(b"x" * 10_000, endless=True) as endless:
        message = fails(tiers(endless.address))
    assert "the server answers, but not in the protocol of Redis" in message


@pytest.mark.parametrize("answer", [*GARBAGE, b"+OK\r\n", b"$3\r\nabcde", b"$-1\r\n$-1\r\n", b":1\r\n"])
def test_garbage_instead_of_a_value_never_comes_through(tiers: Any, answer: bytes) -> None:
    with scripted_server(b"+PONG\r\n" + answer, stays_open=True) as strange:
        tier = tiers(strange.address, password="")
        memory = memoryview(bytearray(1000))
        (loaded,) = tier.load([BlockLoad(name(1), memory)], soon())
        assert loaded.outcome in (Outcome.MISSING, Outcome.FAILED)
        assert tier.lookup([name(1)], soon()) == [None]
        assert tier.delete([name(1)], soon())[0] in (Outcome.OK, Outcome.FAILED)


def test_blocks_expire_unless_they_are_loaded(tiers: Any) -> None:
    with redis_server() as server, server.client() as client:
        tier = tiers(server.address, password="", ttl_s=1000)
        cached = block(1, 100)
        key = value_name(CLUSTER, cached.block.name)
        store(tier, cached)
        assert 0 < client.ttl(key) <= 1000
        client.expire(key, 500)
        tier.lookup([cached.block.name], soon())
        assert 0 < client.ttl(key) <= 500
        load(tier, cached)
        assert client.ttl(key) > 500
        client.delete(key)
        assert tier.usage().blocks == 1
        load(tier, cached)
        assert tier.usage().blocks == 0


def test_a_block_that_expired_is_not_counted(tiers: Any) -> None:
    with redis_server() as server:
        tier = tiers(server.address, password="", ttl_s=1)
        store(tier, block(1, 100))
        wait_until(lambda: tier.usage().blocks == 0, "the tier no longer counts the block")
        # The server received it later than the tier sent it, and so keeps it a little longer.
        wait_until(lambda: tier.lookup([name(1)], soon()) == [None], "the block expires")


def test_a_scan_that_repeats_is_given_up(tiers: Any) -> None:
    with scripted_server(b"*2\r\n$1\r\n7\r\n*0\r\n", stays_open=True) as endless:
        tier = tiers(endless.address, password="")
        with pytest.raises(TierError, match="SCAN answers with the cursor that it was sent"):
            list(tier.blocks(soon()))


def test_a_reply_without_an_end_is_given_up() -> None:
    class Endless:
        def __init__(self) -> None:
            self._pieces = chain([b"*1000000\r\n"], repeat(b"+" + b"x" * 8000 + b"\r\n"))

        def receive(self, memory: memoryview, deadline: float, *, whole: bool) -> int:
            piece = next(self._pieces)
            memory[: len(piece)] = piece
            return len(piece)

    sock: Any = Endless()
    with pytest.raises(ValueError, match="a reply is longer than 16777216 bytes"):
        ReplyReader(sock).read_short(soon())


@pytest.mark.parametrize("depth", [8, 9])
def test_a_reply_of_arrays_within_each_other_is_bounded(depth: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"*1\r\n" * depth + b":7\r\n")
        reader = ReplyReader(TimedSocket(ours))
        if depth == 8:
            assert reader.read_short(soon()) == [[[[[[[[7]]]]]]]]
        else:
            with pytest.raises(ValueError, match="more than 8 arrays"):
                reader.read_short(soon())


@pytest.mark.parametrize(
    "reply",
    [b"*1048577\r\n", b"*-7\r\n", b"*3\r\n*1048000\r\n" + b":1\r\n" * 1_048_000 + b"*600\r\n"],
    ids=["at once", "negative", "in several arrays"],
)
def test_elements_of_a_reply_are_bounded(reply: bytes) -> None:
    class Ended:
        def __init__(self) -> None:
            self._left = memoryview(reply)

        def receive(self, memory: memoryview, deadline: float, *, whole: bool) -> int:
            piece, self._left = self._left[: len(memory)], self._left[len(memory) :]
            assert piece, "more is read"
            memory[: len(piece)] = piece
            return len(piece)

    sock: Any = Ended()
    with pytest.raises(ValueError, match="a reply of at most 1048576 elements"):
        ReplyReader(sock).read_short(soon())


def test_a_connection_that_is_reset_is_lost() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.send(b"which the server did not read")
        theirs.close()
        with pytest.raises(ConnectionError, match="reset by peer"):
            TimedSocket(ours).receive(memoryview(bytearray(1)), soon(), whole=False)


def test_calls_of_many_threads_share_few_connections(tiers: Any, server: RedisServer) -> None:
    with tcp_proxy(server.port) as proxy:
        tier = tiers(proxy.address, connections=2)
        stored = [block(number, 10_000) for number in range(40)]
        store(tier, *stored)

        def work() -> None:
            for _ in range(5):
                assert_holds(tier, stored[:5])

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        join(*threads)
        assert proxy.connections <= 8


# --- clusters


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as running:
        yield running


def test_a_server_without_a_cluster_is_reported(tiers: Any, server: RedisServer) -> None:
    tier = tiers(server.address, cluster=True)
    assert "expected a server of a Redis Cluster, got a server without one" in fails(tier)


def test_a_moved_slot_is_followed(tiers: Any, cluster: list[RedisServer]) -> None:
    tier = tiers(cluster[0].address, cluster=True, password="")
    cached, later = block(1, 100_000), block(1, 100_000)
    store(tier, cached)
    tier.delete([cached.block.name], soon())
    with _slot_of(cluster, cached) as (slot, source, target, clients):
        _move(slot, source, target, clients)
        assert store(tier, later) == [Outcome.OK]
        assert_holds(tier, [later])
        tier.delete([later.block.name], soon())
        _move(slot, target, source, clients)


def test_a_slot_that_is_being_moved_is_read_on_both_servers(tiers: Any, cluster: list[RedisServer]) -> None:
    tier = tiers(cluster[0].address, cluster=True, password="")
    cached = block(2, 100_000)
    with _slot_of(cluster, cached) as (slot, source, target, clients):
        ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
        clients[ids.index(target)].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
        clients[ids.index(source)].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
        assert store(tier, cached) == [Outcome.OK]
        assert clients[ids.index(source)].dbsize() == 0
        assert_holds(tier, [cached])
        assert tier.delete([cached.block.name], soon()) == [Outcome.OK]
        assert_lacks(tier, [cached])
        for client in clients:
            client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")


@contextmanager
def _slot_of(cluster: list[RedisServer], stored: BlockStore) -> Iterator[tuple[int, str, str, list[Any]]]:
    """Give the slot of a block, the identities of its server and of another one, and clients of all servers."""
    slot = key_slot(value_name(CLUSTER, stored.block.name).encode())
    clients = [server.client() for server in cluster]
    try:
        holder = min(slot * len(cluster) // SLOTS, len(cluster) - 1)
        ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
        yield slot, ids[holder], ids[(holder + 1) % len(ids)], clients
    finally:
        for client in clients:
            client.close()


def _move(slot: int, source: str, target: str, clients: list[Any]) -> None:
    """Give an empty slot to another server of a cluster. The new server imports it and comes first: this gives it a new
    epoch. Otherwise, the old server might claim the slot again before all know it."""
    ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
    clients[ids.index(target)].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
    for _, client in sorted(enumerate(clients), key=lambda each: ids[each[0]] != target):
        client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target)


@pytest.mark.parametrize("field", ["ca_file", "certificate_file", "key_file"])
def test_a_device_is_refused_as_certificates(tiers: Any, field: str) -> None:
    """It would be read for ever."""
    assert f"{field}: /dev/zero: expected a regular file" in fails(
        tiers(unused_address(), tls=True, password="", **{field: "/dev/zero"})
    )


@pytest.mark.parametrize("kind", ["MOVED", "ASK"])
def test_without_a_cluster_no_other_server_is_queried(tiers: Any, kind: str) -> None:
    """The other server would get the password."""
    with scripted_server(b"+OK\r\n", stays_open=True) as other:
        answer = f"+PONG\r\n-{kind} 1234 {other.address}\r\n".encode()
        with scripted_server(answer, stays_open=True) as hostile:
            tier = tiers(hostile.address, password="")
            for call in (
                lambda: store(tier, block(1, 100)),
                lambda: load(tier, block(1, 100)),
                lambda: tier.lookup([name(1)], soon()),
                lambda: tier.delete([name(1)], soon()),
            ):
                with pytest.raises(TierError, match="expected a server without a cluster"):
                    call()
        assert other.received == b""


@pytest.mark.parametrize("target", ["127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:999999", "[::1]:-1", ":"])
def test_a_redirection_to_no_port_fails_the_block(tiers: Any, target: str) -> None:
    slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%d\r\n"
    moved = f"-MOVED 1234 {target}\r\n".encode()
    with scripted_server(b"", stays_open=True) as hostile:
        hostile._answer = b"+PONG\r\n" + slots % hostile.port + moved
        tier = tiers(hostile.address, password="", cluster=True)
        assert store(tier, block(1, 100)) == [Outcome.FAILED]


# ---- servers of a cluster that are gone


GONE = 1


@pytest.fixture
def servers() -> Iterator[list[RedisServer]]:
    with redis_cluster() as running:
        yield running


@pytest.fixture
def tier(servers: list[RedisServer]) -> Iterator[RedisTier]:
    parameters: dict[str, Any] = {"servers": [server.address for server in servers], "cluster": True}
    opened = open_tier("redis", parameters | {"connect_timeout_s": 30.0}, TierContext(CLUSTER, "node-1", 0))
    assert isinstance(opened, RedisTier)
    yield opened
    opened.close()


def by_server(servers: list[RedisServer], stored: list[BlockStore]) -> list[list[BlockStore]]:
    """Divide blocks by the server that holds them."""
    divided: list[list[BlockStore]] = [[] for _ in servers]
    for entry in stored:
        slot = key_slot(value_name(CLUSTER, entry.block.name).encode())
        divided[min(slot * len(servers) // SLOTS, len(servers) - 1)].append(entry)
    return divided


def test_calls_for_blocks_of_a_server_that_is_gone_fail_alone(servers: list[RedisServer], tier: RedisTier) -> None:
    stored = [block(number, 1000) for number in range(60)]
    assert store(tier, *stored) == [Outcome.OK] * 60
    divided = by_server(servers, stored)
    assert all(divided)
    servers[GONE].kill()
    gone = divided[GONE]
    names = [entry.block.name for entry in gone]
    for _ in range(2):  # the second time, the server is in its backoff
        assert load(tier, gone[0])[0].outcome is Outcome.FAILED
        assert store(tier, *gone) == [Outcome.FAILED] * len(gone)
        assert tier.delete(names, soon()) == [Outcome.FAILED] * len(gone)
        assert tier.lookup(names, soon()) == [None] * len(gone)
    health = tier.health(soon())
    assert health.ok
    assert servers[GONE].address in health.reason
    assert_holds(tier, [*divided[0], *divided[2]])


def test_a_call_fails_as_a_whole_when_every_server_is_gone(servers: list[RedisServer], tier: RedisTier) -> None:
    stored = [block(number, 1000) for number in range(60)]
    store(tier, *stored)
    for server in servers:
        server.kill()
    for blocks in (stored, stored[:1]):
        with pytest.raises(TierError):
            tier.delete([entry.block.name for entry in blocks], soon())
