"""A data plane joins a fleet by a token, and from then on lets in whom that fleet named, over CURVE alone."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
import pytest
import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from dataplane.base.connection_guard import MAX_BYTES
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.control.messages import VERSION
from dataplane.protocol.control.nodes import Hello, Welcome
from dataplane.protocol.join import SECRET_BYTES, Join, Joined, JoinRefused, JoinReply, JoinToken, token_text, with_host
from dataplane.sockets.curve import key_pair
from tests import forked
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect
from tests.dataplane.plane import WAIT_S, Plane, wait_for

MIB = 1 << 20
QUIET_MS = 500
"""Long enough for an answer that must not come, were it to come."""

_join_decoder = decoder(Join)


class ManagementPlane:
    """Binds a join socket on a free port; every question waits until the test answers it."""

    def __init__(self, url: str = "tcp://127.0.0.1:*") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        public, self.secret = zmq.curve_keypair()
        self.public = public.decode()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
        self._made: list[zmq.Socket[bytes]] = []
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.curve_server = True
        self.socket.curve_secretkey = self.secret
        self.socket.bind(url)
        self.url = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def token(self, *, key: str = "", addresses: list[str] | None = None) -> JoinToken:
        return JoinToken("t1", b"s" * SECRET_BYTES, key or self.public, addresses or [self.url])

    def token_file(self, folder: Path, token: JoinToken | None = None) -> str:
        path = folder / "token"
        path.touch(mode=0o600)
        path.write_text(token_text(token or self.token()) + "\n")
        return str(path)

    def answer(self, reply: Callable[[Join], JoinReply]) -> tuple[Join, str]:
        """Wait for a node's question and answer it: the question, and the key of the node."""
        assert self.socket.poll(int(WAIT_S * 1000)), "a node asks to join"
        peer, frame = self.socket.recv_multipart(copy=False)
        key = frame.get("User-Id")
        assert isinstance(key, str)
        join: Join = decode(_join_decoder, frame.bytes)
        self.socket.send_multipart([peer.bytes, encode(reply(join))])
        return join, key

    def admit(self, *managers: str) -> tuple[Join, str]:
        """Answer that these keys (default: this one's) may talk to the node."""
        return self.answer(
            lambda join: Joined(join.node, list(managers) or [self.public], join.control_url, join.events_url)
        )

    def refuse(self, code: str) -> tuple[Join, str]:
        return self.answer(lambda join: JoinRefused(code, "that is how it is"))

    def requested(self, timeout_s: float) -> bool:
        return bool(self.socket.poll(int(timeout_s * 1000)))

    def control(self, url: str, server_key: str, keys: tuple[str, bytes] | None = None) -> zmq.Socket[bytes]:
        """A DEALER to a node's control socket, with this management plane's key or another's."""
        return self._connect(zmq.DEALER, url, server_key, keys)

    def events(self, url: str, server_key: str, keys: tuple[str, bytes] | None = None) -> zmq.Socket[bytes]:
        socket = self._connect(zmq.SUB, url, server_key, keys)
        socket.subscribe(b"")
        return socket

    def _connect(self, kind: int, url: str, server_key: str, keys: tuple[str, bytes] | None) -> zmq.Socket[bytes]:
        public, secret = keys or (self.public, self.secret)
        socket = self._socket(kind)
        socket.curve_serverkey = server_key.encode()
        socket.curve_publickey = public.encode()
        socket.curve_secretkey = secret
        socket.connect(url)
        return socket

    def plain(self, kind: int, url: str) -> zmq.Socket[bytes]:
        """A socket that speaks no CURVE."""
        socket = self._socket(kind)
        socket.connect(url)
        return socket

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        self._made.append(socket)
        return socket

    def close(self) -> None:
        self._authenticator.stop()
        for opened in (self.socket, *self._made):
            opened.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def fleet() -> Iterator[ManagementPlane]:
    with ManagementPlane() as fleet:
        yield fleet


@pytest.fixture
def node(make_plane: Callable[..., Plane], fleet: ManagementPlane) -> Plane:
    """A data plane on loopback TCP that will ask this management plane; not started."""
    plane = make_plane(
        control_url="tcp://127.0.0.1:*",
        events_url="tcp://127.0.0.1:*",
        dataplane__node="node-a",
        dataplane__labels="gpu=h200,zone=a",
    )
    plane.settings["dataplane__join_token_file"] = fleet.token_file(plane.folder)
    return plane


def joined(node: Plane) -> str:
    return (node.folder / "joined.json").read_text()


def restart(node: Plane) -> None:
    """Start it again once it has kept the join."""
    wait_for(lambda: (node.folder / "joined.json").exists(), "the join is kept")
    node.stop()
    node.start()


def ask(socket: zmq.Socket[bytes], message: object = None) -> bytes | None:
    """The answer to a hello (or another message), or None when none comes, or the other end refuses the connection."""
    if not socket.poll(QUIET_MS, zmq.POLLOUT):
        return None
    socket.send(encode(message or Hello(VERSION, "test")))
    return socket.recv() if socket.poll(QUIET_MS) else None


def welcome(fleet: ManagementPlane, url: str, key: str) -> Welcome:
    socket = fleet.control(url, key)
    socket.send(encode(Hello(VERSION, "test")))
    assert socket.poll(int(WAIT_S * 1000)), "the node answers its management plane"
    answer = msgspec.msgpack.decode(socket.recv(), type=Welcome)
    socket.close()
    return answer


@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_is_there_already_gets_no_secret_key(tmp_path: Path, link: bool) -> None:
    path, readable = tmp_path / "curve.key", tmp_path / "readable"
    left = path.with_suffix(".new")
    readable.touch(0o644)
    readable.chmod(0o644)
    if link:
        left.symlink_to(readable)
    else:
        left.hardlink_to(readable)
    made = key_pair(path)
    assert readable.read_bytes() == b""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key_pair(path) == made


def test_a_node_sends_its_name_and_address_and_then_serves_its_management_plane_alone(
    node: Plane, fleet: ManagementPlane
) -> None:
    node.start()
    join, key = fleet.admit()
    assert (join.node, join.labels) == ("node-a", {"gpu": "h200", "zone": "a"})
    assert (join.token, join.secret) == ("t1", b"s" * 32)
    answer = welcome(fleet, join.control_url, key)
    assert (answer.node, answer.labels) == (join.node, join.labels)
    events = fleet.events(join.events_url, key)
    assert events.poll(int(WAIT_S * 1000)), "the node's events come"
    mode = stat.S_IMODE((node.folder / "curve.key").stat().st_mode)
    assert mode == 0o600
    kept = (node.folder / "joined.json").read_bytes()
    for form in (join.secret, join.secret.hex().encode(), b64encode(join.secret).rstrip(b"=")):
        assert form not in kept, "the token's secret is not kept"
    # peers without an admitted key get no answer and no event
    unknown_key = zmq.curve_keypair()
    strange = unknown_key[0].decode(), unknown_key[1]
    assert ask(fleet.control(join.control_url, key, strange)) is None
    assert ask(fleet.plain(zmq.DEALER, join.control_url)) is None
    assert not fleet.events(join.events_url, key, strange).poll(QUIET_MS * 2)
    plain = fleet.plain(zmq.SUB, join.events_url)
    plain.subscribe(b"")
    assert not plain.poll(QUIET_MS * 2)
    wrong_server = fleet.control(join.control_url, fleet.public)
    assert ask(wrong_server) is None, "the node proves its own key, too"
    wait_for(lambda: "peer.refused" in node.log(), "the refusal is logged")
    assert node.stop() == 0


def test_a_peer_sends_little_before_its_key_is_admitted_and_then_as_much_as_a_message_may_have(
    node: Plane, fleet: ManagementPlane
) -> None:
    node.start()
    join, key = fleet.admit()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    frame = b"\x06" + (32 * MIB).to_bytes(8, "big") + bytes(16 * MIB)  # a command that says no more than its length
    for url in (join.control_url, join.events_url):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=WAIT_S) as peer:
            peer.sendall(greeting)
            assert peer.recv(64, socket.MSG_WAITALL)
            with suppress(ConnectionError):
                peer.sendall(frame)
                while peer.recv(4096):
                    pass
    wait_for(
        lambda: f"sent more than {MAX_BYTES} bytes" in node.log(), "it was not the end of the time for a handshake"
    )
    admitted = fleet.control(join.control_url, key)
    for message in (bytes(32 * MIB), encode(Hello(VERSION, "test"))):
        admitted.send(message)
        assert admitted.poll(int(WAIT_S * 1000)), "the node answers"
        answer = admitted.recv()
    assert msgspec.msgpack.decode(answer, type=Welcome).node == "node-a"


def test_peers_are_admitted_only_after_the_node_has_joined(node: Plane, fleet: ManagementPlane) -> None:
    node.start()
    join, key = fleet.refuse("unavailable")
    early = fleet.control(join.control_url, key)
    assert ask(early) is None
    fleet.admit()
    assert early.poll(int(WAIT_S * 1000)), "what was said too early is answered"


def test_a_restart_needs_no_token(node: Plane, fleet: ManagementPlane) -> None:
    node.start()
    _, key = fleet.admit()
    wait_for(lambda: (node.folder / "joined.json").exists(), "the join is kept")
    node.kill()
    Path(node.settings["dataplane__join_token_file"]).unlink()
    node.start()
    join, same = fleet.admit()
    assert (join.token, join.secret, same) == ("", b"", key)
    assert welcome(fleet, join.control_url, key).node == "node-a"
    del node.settings["dataplane__join_token_file"]
    node.stop()
    node.start()
    assert fleet.admit()[1] == key


def test_engines_and_the_management_plane_are_served_without_the_join_socket(
    node: Plane, fleet: ManagementPlane
) -> None:
    node.start()
    join, key = fleet.admit()
    wait_for(lambda: (node.folder / "joined.json").exists(), "the join is kept")
    node.kill()
    node.settings["control_url"] = join.control_url
    node.start()
    assert welcome(fleet, join.control_url, key).node == "node-a", "without an answer to its second join"
    with connect(node) as client:
        assert client.reserve(make.keys(1), 4096, tenant="a").refused == {}


@pytest.mark.parametrize("code", ["bad_token", "token_expired", "token_used_up", "name_taken", "unheard_of"])
def test_a_first_join_that_is_refused_ends_the_data_plane_with_a_sentence(
    node: Plane, fleet: ManagementPlane, code: str
) -> None:
    node.start()
    fleet.refuse(code)
    assert node.process.wait(timeout=WAIT_S) == 1
    assert f"{code}: that is how it is" in node.log()
    assert "Traceback" not in node.log()
    assert not (node.folder / "joined.json").exists()


def test_a_refusal_that_passes_is_tried_again(node: Plane, fleet: ManagementPlane) -> None:
    node.start()
    fleet.refuse("rate_limited")
    fleet.refuse("unavailable")
    join, key = fleet.admit()
    assert welcome(fleet, join.control_url, key).node == "node-a"
    assert node.alive


def test_a_forgotten_node_continues_serving_engines_and_joins_again_by_a_token_at_its_next_start(
    node: Plane, fleet: ManagementPlane
) -> None:
    node.start()
    fleet.admit()
    wait_for(lambda: (node.folder / "joined.json").exists(), "the join is kept")
    node.stop()
    token = node.settings.pop("dataplane__join_token_file")
    node.start()
    fleet.refuse("unknown_node")
    wait_for(lambda: "node.forgotten" in node.log(), "the refusal is logged")
    with connect(node) as client:
        assert client.reserve(make.keys(1), 4096, tenant="a").refused == {}
    node.stop()
    node.settings["dataplane__join_token_file"] = token
    node.start()
    fleet.refuse("unknown_node")
    join, key = fleet.admit()
    assert join.token == "t1"
    assert welcome(fleet, join.control_url, key).node == "node-a"


def test_a_node_tries_every_address_of_its_token(node: Plane, fleet: ManagementPlane) -> None:
    token = fleet.token(addresses=["tcp://127.0.0.1:1", fleet.url])
    node.settings["dataplane__join_token_file"] = fleet.token_file(node.folder, token)
    node.start()
    assert fleet.admit()[0].node == "node-a"


def test_a_new_token_gives_the_new_address_of_a_management_plane(node: Plane, fleet: ManagementPlane) -> None:
    membership = {"node": "node-a", "key": fleet.public, "managers": [fleet.public]}
    (node.folder / "joined.json").write_text(json.dumps({**membership, "addresses": ["tcp://127.0.0.1:1"]}))
    node.start()
    assert fleet.admit()[0].token == "", "it was in this fleet before"
    record = json.loads(wait_for(lambda: fleet.url in (text := joined(node)) and text, "the new address is kept"))
    assert record["addresses"] == [fleet.url, "tcp://127.0.0.1:1"]


def test_a_token_of_another_management_plane_gets_no_answer(node: Plane, fleet: ManagementPlane) -> None:
    other = zmq.curve_keypair()[0].decode()
    node.settings["dataplane__join_token_file"] = fleet.token_file(node.folder, fleet.token(key=other))
    node.start()
    wait_for(lambda: "join.unanswered" in node.log(), "it reports that there is no answer")
    assert not fleet.requested(0)
    assert node.alive


def test_a_key_that_is_no_longer_named_is_not_listened_to_although_it_is_connected(
    node: Plane, fleet: ManagementPlane
) -> None:
    node.start()
    join, key = fleet.admit()
    socket = fleet.control(join.control_url, key)
    socket.send(encode(Hello(VERSION, "test")))
    assert socket.poll(int(WAIT_S * 1000))
    socket.recv()
    node.settings["control_url"] = join.control_url
    restart(node)
    another = zmq.curve_keypair()[0].decode()
    fleet.admit(another)
    wait_for(lambda: another in (node.folder / "joined.json").read_text(), "the new key is kept")
    assert ask(socket) is None


def test_the_advertised_url_is_sent_to_the_management_plane(node: Plane, fleet: ManagementPlane) -> None:
    urls = {name: f"tcp://node-a.example:{port}" for name, port in (("control_url", 8472), ("events_url", 8473))}
    node.settings.update({f"dataplane__advertise_{name}": url for name, url in urls.items()})
    node.start()
    join, _ = fleet.admit()
    assert {"control_url": join.control_url, "events_url": join.events_url} == urls


def test_a_wildcard_address_is_sent_with_its_port_and_events_use_the_name_of_the_answer(
    node: Plane, fleet: ManagementPlane
) -> None:
    node.settings.update(control_url="tcp://0.0.0.0:*", events_url="tcp://0.0.0.0:*")
    node.start()
    join, key = fleet.answer(
        lambda join: Joined(
            join.node, [fleet.public], with_host(join.control_url, "127.0.0.1"), with_host(join.events_url, "127.0.0.1")
        )
    )
    assert join.control_url.startswith("tcp://0.0.0.0:")
    reached = with_host(join.control_url, "127.0.0.1")
    assert welcome(fleet, reached, key).events_url == with_host(join.events_url, "127.0.0.1")


def test_sockets_in_the_file_system_stay_plain(node: Plane, fleet: ManagementPlane) -> None:
    del node.settings["control_url"], node.settings["events_url"]
    node.start()
    join, _ = fleet.admit()
    assert join.control_url == node.control_url
    assert node.describe().node == "node-a"


# ---- what cannot be


def run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
    settings = {
        "LARDER_STATE_DIR": str(folder),
        "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
        "LARDER_POOL_BYTES": "4MiB",
        "LARDER_LMCACHE_PORT": "0",
    }
    return forked.run("dataplane", *arguments, env={**clean, **settings, **environ})


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_a_file_that_holds_no_token_ends_the_start_and_is_not_repeated(socket_dir: Path) -> None:
    file = socket_dir / "token"
    file.touch(mode=0o600)
    for text in ("", "larder-join-1.", "larder-join-1.abc", "hunter2", "larder-join-1.%%%", "\xff"):
        file.write_bytes(text.encode("latin-1"))
        done = run(socket_dir, "--join-token-file", str(file))
        refused(done, "dataplane.join_token_file", str(file))
        assert "hunter2" not in done.stderr


def test_settings_with_which_a_node_cannot_join_are_refused_with_the_remedy(
    socket_dir: Path, fleet: ManagementPlane
) -> None:
    refused(run(socket_dir, "--join-token-file", "/no/such/token"), "/no/such/token does not exist")
    done = run(socket_dir, LARDER_CONTROL_URL="tcp://0.0.0.0:8472")
    refused(done, "larder nodes token create")  # plain sockets that others can reach
    file = fleet.token_file(socket_dir, fleet.token(addresses=["tcp://192.0.2.1:8471"]))
    refused(run(socket_dir, "--join-token-file", file), "control_url", "LARDER_CONTROL_URL=tcp://0.0.0.0:8472")
    Path(file).chmod(0o644)
    done = run(socket_dir, "--join-token-file", file)
    refused(done, f"dataplane.join_token_file: {file}", "0600", "0644", f"chmod 600 {file}")


def test_a_key_that_others_can_read_is_refused(socket_dir: Path, fleet: ManagementPlane) -> None:
    file = fleet.token_file(socket_dir)
    key = socket_dir / "curve.key"
    key.write_bytes(zmq.curve_keypair()[1])
    key.chmod(0o644)
    done = run(socket_dir, "--join-token-file", file)
    refused(done, str(key), "0600", "0644")
    assert key.read_text() not in done.stderr
    key.write_bytes(b"nonsense")
    key.chmod(0o600)
    refused(run(socket_dir, "--join-token-file", file), str(key), "CURVE")


def test_a_damaged_fleet_record_is_reported_and_a_token_replaces_it(node: Plane, fleet: ManagementPlane) -> None:
    (node.folder / "joined.json").write_text('{"managers": 3')
    done = run(node.folder)
    refused(done, "joined.json")
    node.start()
    assert fleet.admit()[0].token == "t1"
    assert (node.folder / "joined.corrupt").exists()
