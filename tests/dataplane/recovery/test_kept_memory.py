"""The holder has all memory from the start: however a data plane ends, the next one has every block."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dataplane.client import ClientEvent
from dataplane.holding import requests
from dataplane.holding.folder import SOCKET_NAME
from dataplane.holding.messages import VERSION, send
from dataplane.holding.process import WARM_STARTS
from dataplane.holding.requests import HolderFailed, answer_to, release
from dataplane.protocol.signals import HAND_OVER_SIGNAL, HANDED_OVER_EXIT_CODE, RELEASE_SIGNAL
from tests import forked
from tests.dataplane import factories as make
from tests.dataplane.blocks import (
    PAGE_BYTES,
    attached_again,
    cached,
    connect,
    kill,
    lost,
    read,
    read_alone,
    store,
    store_alone,
)
from tests.dataplane.load.engines import holders
from tests.dataplane.plane import contents, wait_for
from tests.dataplane.recovery.support.harness import Supervised
from tests.dataplane.recovery.support.relay import Relay, writer
from tests.free_port import free_port
from tests.lmcache.client import Client as LMCacheClient
from tests.lmcache.client import prompt
from tests.lmcache.planes import FOLDER as SHM
from tests.lmcache.planes import check as check_chunks
from tests.lmcache.planes import gateway_plane, mapped, url_of
from tests.lmcache.planes import store as store_chunks


def record(plane: Relay) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((plane.folder / "cache.json").read_text())
    return found


def ended_by(plane: Relay, number: int) -> int:
    plane.signal(number)
    assert plane.process is not None
    return plane.process.wait(60)


# ---- stops and kills


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 0),
        (signal.SIGINT, 0),
        (signal.SIGKILL, -9),
        (HAND_OVER_SIGNAL, HANDED_OVER_EXIT_CODE),
        pytest.param(signal.SIGALRM, 1, id="an error that nothing catches"),
    ],
)
def test_an_end_and_a_start_keep_every_block_lease_and_view(
    make_plane: Callable[..., Relay], number: int, code: int
) -> None:
    plane = make_plane()
    plane.fault = "fails_on_sigalrm" if number == signal.SIGALRM else ""
    plane.start()
    chain = make.keys(5)
    (pid,) = plane.holders()
    events: list[ClientEvent] = []
    with connect(plane, on_event=events.append) as client:
        assert store(client, chain, tenant="a") == 5
        lease = client.acquire(chain)
        view, attachment = lease.view(2), client._memory.current
        for cycle in range(2):
            epoch = client.epoch
            assert ended_by(plane, number) == code
            lost(client)
            assert read(client, chain) == 5, "engines read on while nothing serves"
            assert not client.reserve(make.keys(1, "refused"), PAGE_BYTES).number
            plane.start()
            attached_again(client)
            assert len(plane.wait_logged("memory.adopted", cycle + 1)) == cycle + 1
            assert client.epoch != epoch
            assert client._memory.current is attachment, "with the same memory"
            assert bytes(view) == contents(chain, PAGE_BYTES)[2]
            assert store(client, make.keys(3, ("new", cycle))) == 3
        stats = plane.describe()
        assert (stats.adopted_blocks, stats.pool.blocks, len(stats.engines)) == (8, 11, 1)
        assert {each.tenant: each.blocks for each in stats.tenants} == {"a": 5, "_default": 6}
        start = stats.start
        assert (start.kind, start.blocks, start.bytes, start.lost_blocks) == ("warm", 8, 8 * PAGE_BYTES, 0)
        lease.release()
    assert [event.name for event in events] == ["attached", *["lost", "attached"] * 2]
    assert plane.holders() == [pid], "one holder for all of them"
    adopted = [(each["blocks"], each["quarantined_blocks"], each["engines"]) for each in plane.logged("memory.adopted")]
    assert adopted == [(5, 0, 1), (8, 0, 1)]
    records = [(each["blocks"], each["seconds"], each["pid"]) for each in plane.logged("memory.kept")]
    assert records == ([] if code else [(5, 60.0, pid), (8, 60.0, pid)])
    assert ("a defect" in plane.log()) == (number == signal.SIGALRM)


def test_memory_that_comes_and_goes_is_followed(plane: Relay) -> None:
    def kinds() -> list[str]:
        return [kind for kind, _ in plane.peeked()]

    wait_for(lambda: sorted(kinds()) == ["books", "index", "names"], "the first memory is held")
    with cached(plane):
        wait_for(lambda: {"segment", "area"} <= set(kinds()), "what was added is held")
    wait_for(lambda: "area" not in kinds(), "the area of an engine that left is not")


def test_a_data_plane_that_is_killed_while_its_supervisor_stops_loses_nothing(plane: Relay) -> None:
    assert plane.stop() == 0
    supervised = Supervised(plane.folder, plane.settings).start()
    try:
        store_alone(plane, 4)
        pid = supervised.plane_pid
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text(), "the data plane stops")
        supervised.signal(signal.SIGTERM)
        os.kill(pid, signal.SIGKILL)
        assert supervised.process is not None
        assert supervised.process.wait(60) == 0
    finally:
        supervised.kill_process()
    plane.start()
    assert plane.describe().start.kind == "warm"
    assert read_alone(plane, 4) == 4


def end_holder(plane: Relay, number: int) -> None:
    (ended,) = requests.signal_holders(plane.folder, number)
    wait_for(lambda: ended not in plane.holders(), "it ends")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_ends_is_replaced_and_has_everything(plane: Relay, number: int) -> None:
    with cached(plane) as (client, is_released):
        for _ in range(2):
            end_holder(plane, number)
            wait_for(lambda: len(plane.peeked()) == 5, "another one has all memory")
            assert read(client, make.keys(3)) == 3
        assert not is_released()
        assert len(plane.wait_logged("holder.replaced", 2)) == len(plane.logged("holder.lost")) == 2
        plane.kill()
        plane.start()
        attached_again(client)
        assert read(client, make.keys(3)) == 3


def test_a_start_after_the_death_of_the_holder_is_cold_and_logged(plane: Relay) -> None:
    store_alone(plane)
    assert plane.stop() == 0
    requests.signal_holders(plane.folder, signal.SIGKILL)
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.lost_blocks, start.lost_bytes) == ("cold", 3, 3 * PAGE_BYTES)
    assert start.reason == "the holder of the memory ended, too"
    wait_for(lambda: record(plane)["blocks"] == 0, "the record is the one of this data plane")
    plane.kill()
    requests.signal_holders(plane.folder, signal.SIGKILL)
    plane.start()
    assert plane.describe().start.kind == "first", "the same blocks were reported as lost twice"


@pytest.mark.full
def test_engines_under_load_read_on_through_stops_and_kills_and_lose_nothing(plane: Relay) -> None:
    with holders(plane, 2) as end, connect(plane) as client:
        for away_s in (0.0, 1.0, 2.0):
            for number in (signal.SIGTERM, signal.SIGKILL):
                ended_by(plane, number)
                lost(client)
                time.sleep(away_s)
                plane.start()
                start = plane.describe().start  # asserts that the audit finds nothing
                assert (start.kind, start.lost_blocks) == ("warm", 0)
                attached_again(client)
                assert store(client, make.keys(1, ("after", away_s, number))) == 1
        end()


def test_blocks_of_lmcache_clients_survive_a_stop_and_a_start(socket_dir: Path) -> None:
    with gateway_plane(socket_dir, dataplane__keep_memory_s="60") as plane, LMCacheClient(url_of(plane)) as client:
        registered = client.register()
        name = registered["shm_name"]
        with mapped(registered) as segment:
            assert store_chunks(client, segment, prompt(3), 0, "one")
            assert plane.stop() == 0
            assert (SHM / name).exists(), "the name lives on with the memory"
            plane.start()
            assert plane.describe().start.kind == "warm"
            with LMCacheClient(url_of(plane)) as other:
                assert other.register(8)["shm_name"] == name
                assert other.lookup(prompt(3), "two") == 3
                assert check_chunks(other, segment, prompt(3), 0, "two", instance=8)
        assert plane.stop() == 0
        released = release(plane.folder, "by an operator")
        assert released is not None
        assert released.blocks == 3
        assert not (SHM / name).exists(), "the name goes with the memory"
        assert [path.name for path in SHM.iterdir() if path.name.endswith(name)] == [], "the backup name too"


def test_a_kill_keeps_the_connections_of_lmcache_clients(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(lmcache_port=str(free_port())).start()
    with LMCacheClient(url_of(plane)) as client, mapped(client.register()) as segment:
        client.answered_twice = True
        tokens = prompt(1)
        assert store_chunks(client, segment, tokens, 1, "r1")
        for request in ("r2", "r3"):
            plane.kill()
            plane.start()
            assert check_chunks(client, segment, tokens, 1, request)


def test_connections_of_lmcache_clients_end_after_a_while(make_plane: Callable[..., Relay]) -> None:
    """Without a data plane, a client would wait for an answer that does not come."""
    plane = make_plane(lmcache_port=str(free_port())).start()
    wait_for(lambda: ("listener", 0) in plane.peeked(), "the listener is held")
    with socket.create_connection(("127.0.0.1", int(plane.settings["lmcache_port"]))) as client:
        plane.kill()
        assert ("listener", 0) in plane.peeked()
        client.settimeout(60)
        with suppress(ConnectionResetError):
            while client.recv(4096):  # the greeting, then the end
                pass
    assert ("index", 0) in plane.peeked(), "the memory stays"


# ---- what ends the memory


def test_nothing_is_kept_of_an_empty_cache(plane: Relay) -> None:
    assert plane.stop() == 0
    wait_for(lambda: not plane.holders(), "the holder ends")
    plane.start()
    assert plane.describe().start.kind == "first"


def test_without_time_to_keep_it_the_memory_is_released_by_a_stop_alone(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(dataplane__keep_memory_s="0").start()
    with cached(plane) as (client, is_released):
        plane.kill()
        plane.start()
        attached_again(client)
        assert read(client, make.keys(3)) == 3
        assert plane.stop() == 0
        lost(client)
        assert is_released()
        assert client.lookup(make.keys(3)) == 0, "engines stop reading it"
        assert plane.peeked() == []
    wait_for(lambda: not plane.holders(), "the holder ends")
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.released, start.lost_blocks) == ("cold", True, 3)
    assert "keep_memory_s = 0" in start.reason


def test_the_memory_is_released_when_its_time_is_over(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(dataplane__keep_memory_s="0.5").start()
    with cached(plane) as (client, is_released):
        assert plane.stop() == 0
        wait_for(is_released, "engines learn that it is released")
        assert client.lookup(make.keys(3)) == 0 or not client.connected
    wait_for(lambda: not plane.holders(), "the holder ends")
    assert not (plane.folder / SOCKET_NAME).exists()
    reason = record(plane)["reason"]
    assert "no data plane started within 0.5 s" in reason
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.released, start.lost_blocks) == ("cold", False, 3)
    assert start.reason == reason
    (line,) = plane.wait_logged("cache.started_cold")
    assert (line["lost_blocks"], line["level"]) == (3, "warning")


@pytest.mark.parametrize("number", [RELEASE_SIGNAL, signal.SIGTERM], ids=["data plane", "holder"])
def test_signals_release_the_memory_of_a_data_plane_or_of_a_holder_that_has_none(plane: Relay, number: int) -> None:
    with cached(plane) as (_, is_released):
        assert ended_by(plane, number) == 0
        if number == signal.SIGTERM:
            assert not is_released()
            requests.signal_holders(plane.folder, signal.SIGTERM)
        wait_for(is_released, "engines learn that it is released")
    wait_for(lambda: not plane.holders(), "the holder ends")
    assert number == RELEASE_SIGNAL or "SIGTERM" in record(plane)["reason"]
    assert not (plane.folder / SOCKET_NAME).exists()


def test_a_detached_engine_leaves_memory_that_its_holder_releases(plane: Relay) -> None:
    with cached(plane) as (client, is_released):
        kill(plane, client)
        assert read(client, make.keys(3)) == 3, "it is kept for the next data plane"
        assert release(plane.folder, "by an operator") is not None
        assert is_released()
        assert client.lookup(make.keys(3)) == 0
        assert client._memory.current is None, "it is not mapped any longer"


def test_a_deleted_state_directory_releases_the_memory(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(lmcache_port=str(free_port()), dataplane__keep_memory_s="600")
    plane.folder /= "state"
    plane.folder.mkdir()
    plane.start()
    pattern = f"*{plane.environ['LARDER_DATAPLANE__LMCACHE_SHM_NAME']}"
    with cached(plane) as (_, is_released):
        assert plane.stop() == 0
        assert list(SHM.glob(pattern))
        shutil.rmtree(plane.folder)
        wait_for(lambda: not plane.holders(), "the holder ends")
        assert is_released()
    assert not list(SHM.glob(pattern))


def test_a_renamed_state_directory_and_a_removed_socket_keep_the_memory(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane()
    plane.folder /= "state"
    plane.folder.mkdir()
    plane.start()
    store_alone(plane)
    assert plane.stop() == 0
    plane.folder = plane.folder.rename(plane.folder.parent / "renamed")
    (plane.folder / SOCKET_NAME).unlink()
    wait_for(lambda: (plane.folder / SOCKET_NAME).exists(), "the socket gets its name again")
    plane.start()
    assert plane.describe().start.kind == "warm"


def test_memory_of_other_settings_is_not_adopted_and_the_loss_is_logged(
    plane: Relay, make_plane: Callable[..., Relay]
) -> None:
    with cached(plane) as (client, is_released):
        assert plane.stop() == 0
        other = make_plane(dataplane__max_blocks="128").start()
        wait_for(is_released, "engines let the old memory go")
        attached_again(client)
        assert client.lookup(make.keys(3)) == 0
    start = other.describe().start
    assert (start.kind, start.released, start.lost_blocks) == ("cold", False, 3)
    (line,) = other.wait_logged("memory.not_adopted")
    assert line["reason"] in start.reason
    assert "it has 4096 block descriptors, the settings say 128" in line["reason"]
    store_alone(other)
    assert read_alone(other) == 3
    other.kill()
    other.start()
    assert other.describe().start.kind == "warm", "the new memory is held"


# ---- starts that fail


def fail_to_start(plane: Relay) -> int:
    """Return the exit code of a data plane that cannot start."""
    environ = {**plane.environ, "LARDER_CONTROL_URL": "ipc:///proc/none/control.sock"}
    return forked.run("dataplane", env=environ).returncode


def test_starts_that_fail_for_another_reason_leave_the_memory(plane: Relay) -> None:
    with cached(plane) as (_, is_released):
        assert plane.stop() == 0
        for _ in range(WARM_STARTS + 1):
            assert fail_to_start(plane) == 1
        assert not is_released()
        assert release(plane.folder, "by an operator") is not None
        assert is_released()
    assert record(plane)["reason"] == "by an operator"


def begin_and_end(plane: Relay, *messages: str) -> None:
    """A start that takes the memory, says something, and dies."""
    with writer(plane.folder, adopt=True, leaves=False) as (connection, _):
        for do in messages:
            send(connection, {"do": do})


@pytest.mark.parametrize(
    ("messages", "keeps"), [("adopting failed", False), ("adopting", False), ("", True), ("adopting leave", True)]
)
def test_starts_that_fail_because_of_the_memory_give_it_up_and_others_do_not(
    plane: Relay, messages: str, keeps: bool
) -> None:
    with cached(plane) as (_, is_released):
        plane.kill()
        for _ in range(WARM_STARTS + keeps):
            assert not is_released()
            begin_and_end(plane, *messages.split())
        plane.start()
        assert is_released() != keeps
    assert read_alone(plane) == (3 if keeps else 0)
    start = plane.describe().start
    expected = ("warm", "") if keeps else ("cold", f"{WARM_STARTS} starts with it failed")
    assert (start.kind, start.reason) == expected


def test_a_start_that_succeeds_forgives_those_that_failed(plane: Relay) -> None:
    store_alone(plane)
    for _ in range(2):
        plane.kill()
        for _ in range(WARM_STARTS - 1):
            begin_and_end(plane, "failed")
        plane.start()
        assert plane.describe().start.kind == "warm"


def test_a_start_that_fails_without_any_memory_leaves_no_holder(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane()
    assert fail_to_start(plane) == 1
    wait_for(lambda: not plane.holders(), "the holder ends")


def test_a_data_plane_that_dies_while_it_takes_the_memory_leaves_it_to_the_next(plane: Relay) -> None:
    store_alone(plane, 4)
    assert plane.stop() == 0
    with writer(plane.folder, adopt=True):
        with pytest.raises(HolderFailed, match="is taking it over"):
            release(plane.folder, "by an operator")
        second = requests.connect(plane.folder)
        assert second is not None
        with second, pytest.raises(HolderFailed, match="another data plane is connected"):
            answer_to(second, {"do": "take", "version": VERSION, "keep_s": 1, "adopt": True})
    plane.start()
    assert plane.describe().start.kind == "warm"
    assert read_alone(plane, 4) == 4


def test_the_deadline_waits_for_a_data_plane_that_takes_the_memory(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(dataplane__keep_memory_s="1").start()
    with cached(plane, 2) as (_, is_released):
        assert plane.stop() == 0
        with writer(plane.folder, adopt=True):
            time.sleep(2)  # beyond the deadline: nothing may happen, so there is nothing to wait for
            assert not is_released()
        assert ("index", 0) in plane.peeked()


# ---- the record


@pytest.mark.parametrize("content", [b'{"x":' + b"[" * 4000, None])  # others are read in test_damaged_files.py
def test_a_record_that_cannot_be_read_is_none(make_plane: Callable[..., Relay], content: bytes | None) -> None:
    """Without a content it is a pipe, which would block."""
    plane = make_plane()
    path = plane.folder / "cache.json"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    plane.start()
    assert plane.describe().start.kind == "first"
