"""Memory that the tier for object stores shares with the process that makes its requests, which may do anything."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.registry import TierContext, open_tier
from dataplane.tiers.s3 import worker_process
from dataplane.tiers.s3.messages import GetObject, PutObject, StoreRequestFailed
from dataplane.tiers.s3.request_memory import RequestMemory
from dataplane.tiers.s3.worker_process import PendingRequest, WorkerProcess
from tests.tiers.blocks import CLUSTER, block, load
from tests.tiers.redis_server import wait_until
from tests.tiers.s3_server import BUCKET
from tests.tiers.tcp_proxy import scripted_server

pytestmark = pytest.mark.usefixtures("forked_workers")

MIB = 1 << 20
TIMEOUT_S = 60.0
_ANSWERS = "fill(message, bytes([message.number])); done(message.number, message.size)"

Start = Callable[..., WorkerProcess]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
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
        request.reply(soon())
    return raised.value.fault.sentence


def soon() -> float:
    return time.monotonic() + TIMEOUT_S


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
        assert request.reply(soon()).size == 0
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
        assert request.reply(soon()).size == size
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
    assert second.reply(soon()).size == MIB
    assert second.memory == b"\2" * MIB
    with second, get(process, MIB) as third:  # the first one was answered before the second
        assert start_of(third) == start_of(first)
        assert third.reply(soon()).size == MIB
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
        request.reply(soon())
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
