"""The process that makes the requests of the tier for object stores: a server can end it, and harms nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.registry import TierContext, open_tier
from dataplane.tiers.s3 import client, worker_process
from dataplane.tiers.s3.messages import GetObject, PutObject, StoreRequestFailed
from dataplane.tiers.s3.request_memory import RequestMemory
from dataplane.tiers.s3.tier import S3Tier
from dataplane.tiers.s3.worker_process import PendingRequest, WorkerProcess
from dataplane.tiers.tier import TierError
from tests.tiers.blocks import CLUSTER, assert_holds, block, load, name, soon, store
from tests.tiers.redis_server import wait_until
from tests.tiers.s3_server import BUCKET, S3Server, s3_server
from tests.tiers.tcp_proxy import scripted_server

ENDED = "the process that makes the requests ended"
TIMEOUT_S = 120.0
MIB = 1 << 20
HUGE = (1 << 40, (1 << 63) - 1)
"""More bytes than the process may reserve."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., S3Tier]]:
    monkeypatch.setenv("LARDER_TEST_SECRET", "a-secret")
    with ExitStack() as opened:

        def open_one(address: str, **more: Any) -> S3Tier:
            tier = open_tier("s3", parameters(address, **more), TierContext(CLUSTER, "node-1", 0))
            assert isinstance(tier, S3Tier)
            opened.callback(tier.close)
            return tier

        yield open_one


def parameters(address: str, **more: Any) -> dict[str, Any]:
    secret = "env:LARDER_TEST_SECRET"
    return {
        "url": f"s3://{BUCKET}/worker",
        "endpoint": f"http://{address}",
        "region": "us-east-1",
        "credentials": {"access_key_id": secret, "secret_access_key": secret},
        "retries": 0,
        "connect_timeout_s": 30.0,
        **more,
    }


def calls(tier: S3Tier) -> dict[str, Callable[[], object]]:
    return {
        "lookup": lambda: tier.lookup([name(1)], soon()),
        "load": lambda: load(tier, block(1, 100)),
        "store": lambda: store(tier, block(1, 100)),
        "delete": lambda: tier.delete([name(1)], soon()),
        "list": lambda: next(tier.blocks()),
    }


def process_of(tier: S3Tier) -> int:
    pid = tier._client.pid
    assert pid is not None
    return pid


def has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


@pytest.mark.parametrize("size", [HUGE[0], *(pytest.param(size, marks=pytest.mark.full) for size in HUGE[1:])])
@pytest.mark.parametrize("status", ["404 Not Found", pytest.param("500 Internal Server Error", marks=pytest.mark.full)])
def test_an_error_that_claims_a_huge_body_ends_the_process_of_the_tier_alone(
    tiers: Callable[..., S3Tier], size: int, status: str
) -> None:
    answer = f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode()
    with scripted_server(answer + b"a" * MIB, endless=True) as hostile:
        tier = tiers(hostile.address)
        for call in calls(tier).values():  # each one starts a process again
            with pytest.raises(TierError, match=ENDED):
                call()
        health = tier.health(soon())
    assert not health.ok
    assert ENDED in health.reason


@pytest.mark.parametrize("call", ["list", "delete"])
def test_an_endless_body_ends_at_the_limit_on_memory(
    tiers: Callable[..., S3Tier], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(client, "_MEMORY_BYTES", 256 * MIB)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with scripted_server(head + b"100000000\r\n" + b"a" * MIB, endless=True) as hostile:
        tier = tiers(hostile.address, max_in_flight_bytes=1)
        with pytest.raises(TierError, match=ENDED):
            calls(tier)[call]()


def test_after_its_process_was_killed_a_tier_works_with_another_one(
    tiers: Callable[..., S3Tier], server: S3Server
) -> None:
    tier = tiers(server.address)
    cached = block(1, 100_000)
    store(tier, cached)
    first = process_of(tier)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: has_ended(first), "the process has ended")
    wait_until(lambda: tier.health(soon()).ok, "the tier answers again")
    assert process_of(tier) != first
    assert_holds(tier, [cached])


def test_a_call_under_way_fails_when_the_process_is_killed(tiers: Callable[..., S3Tier]) -> None:
    with scripted_server(b"", stays_open=True) as mute:
        tier = tiers(mute.address)
        request = tier._client.get("path", 100, 100)
        wait_until(lambda: mute.received != b"", "the request has arrived")
        os.kill(process_of(tier), signal.SIGKILL)
        error = request.exception(TIMEOUT_S)
    assert isinstance(error, StoreRequestFailed)
    assert "SIGKILL" in error.fault.sentence


def test_closing_a_tier_ends_its_process(tiers: Callable[..., S3Tier], server: S3Server) -> None:
    tier = tiers(server.address)
    assert tier.health(soon()).ok
    pid = process_of(tier)
    tier.close()
    tier.close()
    wait_until(lambda: has_ended(pid), "the process has ended")
    with pytest.raises(TierError, match="the tier is closed"):
        store(tier, block(1, 100))


_KILLED = """
import os, signal, sys, time
from dataplane.tiers.registry import TierContext, open_tier
from tests.tiers.test_s3_worker import parameters
tier = open_tier("s3", parameters(sys.argv[1]), TierContext(bytes(16), "node-1", 0))
assert tier.health(time.monotonic() + 60).ok
print(tier._client.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_process_ends_with_a_data_plane_that_is_killed(server: S3Server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, server.address],
        env={**os.environ, "LARDER_TEST_SECRET": "a-secret"},
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    wait_until(lambda: has_ended(int(done.stdout)), "the process has ended")


# ---- memory of requests


REQUEST_TIMEOUT_S = 60.0
_ANSWERS = "fill(message, bytes([message.number])); done(message.number, message.size)"
Start = Callable[..., WorkerProcess]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, forked_workers: None) -> Callable[[str], None]:
    """Replace the process by one that executes a statement for each message."""

    def replace(statement: str) -> None:
        monkeypatch.setattr(worker_process, "_MODULE", "tests.tiers.scripted_s3_worker")
        monkeypatch.setenv("LARDER_TEST_STATEMENT", statement)

    return replace


@pytest.fixture
def start(script: Callable[[str], None]) -> Iterator[Start]:
    with ExitStack() as started:

        def start_one(statement: str, memory_bytes: int = 1 << 30, cached_bytes: int = 64 * MIB) -> WorkerProcess:
            script(statement)
            process = WorkerProcess(memory_bytes, cached_bytes)
            started.callback(process.close)
            return process

        yield start_one


def get(process: WorkerProcess, size: int) -> PendingRequest:
    return process.request(lambda number, start: GetObject(number, "path", start, size, size), size)


def start_of(request: PendingRequest) -> int:
    assert request.memory_range is not None
    return request.memory_range.start


def why(request: PendingRequest) -> str:
    """Return why a request failed, and end it."""
    with request, pytest.raises(StoreRequestFailed) as raised:
        request.reply(deadline())
    return raised.value.fault.sentence


def deadline() -> float:
    return time.monotonic() + REQUEST_TIMEOUT_S


def used_bytes(memory: RequestMemory) -> int:
    """Return the bytes of the memory that have pages."""
    return os.fstat(memory.fd).st_blocks * 512


def test_a_process_that_is_killed_between_a_value_and_its_answer_fails_the_request(start: Start) -> None:
    process = start("fill(message, b'x'); os.kill(os.getpid(), signal.SIGKILL)")
    assert "SIGKILL" in why(get(process, MIB))
    assert process.ended
    assert "SIGKILL" in why(get(process, MIB))


@pytest.mark.parametrize("size", ["message.size + 1", "-1", "1 << 62"])
def test_a_length_beyond_the_request_is_refused(start: Start, size: str) -> None:
    process = start(f"done(message.number, {size})")
    assert "expected at most 4096 bytes" in why(get(process, 4096))


@pytest.mark.parametrize("number", ["message.number + 1", "0", "-1"])
def test_an_answer_to_no_request_fails_all_requests(start: Start, number: str) -> None:
    process = start(f"done({number})")
    assert "expected a reply to a request" in why(get(process, 4096))


def test_a_second_answer_ends_the_process(start: Start) -> None:
    process = start("done(message.number); done(message.number)")
    with get(process, 4096) as request:
        assert request.reply(deadline()).size == 0
    wait_until(lambda: process.ended, "the process has ended")


def test_a_process_cannot_make_the_memory_shorter(start: Start) -> None:
    process = start(
        "try: os.ftruncate(memory_fd, 0)\nexcept PermissionError as error: failed(message.number, str(error))"
    )
    assert "Operation not permitted" in why(get(process, 4096))


def test_requests_that_need_more_than_the_first_memory_have_memory_of_their_own(start: Start) -> None:
    process = start(_ANSWERS, cached_bytes=8 * MIB)
    size = 3 * MIB
    requests = [get(process, size) for _ in range(12)]
    for request in requests:
        assert request.reply(deadline()).size == size
    for request in requests:  # after all were written
        assert request.memory == bytes([request.number]) * size
        request.release()
    assert 0 < process._memory.resident_bytes <= 8 * MIB
    assert used_bytes(process._memory) <= 8 * MIB


def test_the_value_of_a_request_is_read_by_the_process(start: Start) -> None:
    process = start(
        "value = mmap.mmap(memory_fd, 0)[message.start : message.start + message.size]\n"
        "failed(message.number, value.decode())"
    )
    pieces = [b"two ", memoryview(b"pieces")]
    assert why(process.request(lambda number, start: PutObject(number, "p", start, 10, ""), 10, pieces)) == (
        "two pieces"
    )


def test_memory_of_a_late_request_is_not_used_again_before_its_answer(start: Start) -> None:
    # The first request is answered when the second one has arrived, and written to just before.
    process = start(
        f"if isinstance(message, CancelRequest): continue\n"
        f"if message.number == 1: first = message; continue\n"
        f"if message.number == 2: fill(first, b'!'); failed(1)\n"
        f"{_ANSWERS}"
    )
    first = get(process, MIB)
    with first, pytest.raises(TimeoutError):
        first.reply(time.monotonic())
    second = get(process, MIB)
    assert start_of(second) != start_of(first)
    assert second.reply(deadline()).size == MIB
    assert second.memory == b"\2" * MIB
    with second, get(process, MIB) as third:  # the first one was answered before the second
        assert start_of(third) == start_of(first)
        assert third.reply(deadline()).size == MIB
        assert second.memory == b"\2" * MIB
        assert third.memory == b"\3" * MIB


def test_a_process_that_does_not_answer_a_late_request_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_TIMEOUT_S", 1)
    process = start("pass")
    get(process, 4096).release()
    wait_until(lambda: process.ended, "the process has ended")
    assert "did not answer that a request was given up" in why(get(process, 4096))


def test_a_process_that_keeps_the_memory_of_late_requests_is_killed(start: Start) -> None:
    process = start("pass", memory_bytes=2 * MIB)
    for _ in range(3):
        get(process, MIB).release()
    wait_until(lambda: process.ended, "the process has ended")


def test_memory_is_released_when_no_request_is_made(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_TIMEOUT_S", 1)
    process = start(_ANSWERS)
    with get(process, MIB) as request:
        request.reply(deadline())
        assert used_bytes(process._memory) == MIB
    wait_until(lambda: used_bytes(process._memory) == 0, "the memory is released")
    assert not process.ended


def test_the_size_that_was_not_used_for_the_longest_time_loses_its_pages_first() -> None:
    memory = RequestMemory(2 * MIB)
    for size in (MIB, MIB // 2, 2 * MIB):
        taken = memory.take(size)
        memory.write(taken, [b"a" * size])
        memory.give_back(taken, size)
    assert memory.resident_bytes == used_bytes(memory) == 2 * MIB
    assert memory.take(2 * MIB) == taken._replace(resident_bytes=2 * MIB)
    memory.close()


@pytest.mark.parametrize("statement", ["done(message.number, message.size)", _ANSWERS])
def test_a_value_that_the_process_made_up_is_not_served(
    script: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    script(
        f"if isinstance(message, OpenBucket): continue\n"
        f"if isinstance(message, DeleteObjects): done(message.number); continue\n{statement}"
    )
    tier = open_tier("s3", {"url": f"s3://{BUCKET}/forged"}, TierContext(CLUSTER, "node-1", 0))
    try:
        assert load(tier, block(1, 100_000))[0].outcome is Outcome.CORRUPT
    finally:
        tier.close()


@pytest.mark.usefixtures("forked_workers")
def test_late_requests_of_the_real_process_give_their_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_TEST_SECRET", "a-secret")
    secret = "env:LARDER_TEST_SECRET"
    with scripted_server(b"", stays_open=True) as mute, ExitStack() as opened:
        parameters = {
            "url": f"s3://{BUCKET}/late",
            "endpoint": f"http://{mute.address}",
            "credentials": {"access_key_id": secret, "secret_access_key": secret},
        }
        tier = open_tier("s3", parameters, TierContext(CLUSTER, "node-1", 0))
        opened.callback(tier.close)
        client = tier._client  # type: ignore[attr-defined]
        late = [client.put("path", [bytes(20 * MIB)]), client.get("path", 20 * MIB, 8 * MIB)]
        wait_until(lambda: mute.received != b"", "a request has arrived")
        for request in late:
            request.release()
        process = client._process
        wait_until(lambda: process._memory.resident_bytes == 40 * MIB, "the memory is given back")
        assert not process.ended
        again = [client.put("path", [bytes(20 * MIB)]) for _ in late]
        assert {start_of(request) for request in again} == {start_of(request) for request in late}
        for request in again:
            request.release()
