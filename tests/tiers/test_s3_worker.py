"""The process that makes the requests of the tier for object stores: a server can end it, and harms nothing else."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dataplane.tiers.registry import TierContext, open_tier
from dataplane.tiers.s3 import client
from dataplane.tiers.s3.messages import StoreRequestFailed
from dataplane.tiers.s3.tier import S3Tier
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
