"""The tier `s3` beside obstore alone, which puts and gets the same values, as many at once, without verifying them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import obstore
from obstore.store import S3Store

from benchmarks.harness.result import Result
from benchmarks.harness.setting import Setting
from benchmarks.tiers.shared_transfers import CLUSTER, SIZES, Batch, measure
from dataplane.tiers.registry import TierContext, open_tier

_TIMEOUT_S = 30.0
_AT_ONCE = 16
_VARIABLE = "LARDER_BENCH_S3_SECRET"
_SECRET = "bench"


def run(setting: Setting) -> list[Result]:
    """Ratio to obstore with threads, on a server of its own that stores in memory."""
    results = []
    with _server() as endpoint, ThreadPoolExecutor(_AT_ONCE) as threads:
        bare = S3Store(
            "bench",
            endpoint=endpoint,
            region="us-east-1",
            access_key_id=_SECRET,
            secret_access_key=_SECRET,
            client_options={"allow_http": True},
        )
        os.environ[_VARIABLE] = _SECRET
        references = dict.fromkeys(("access_key_id", "secret_access_key"), f"env:{_VARIABLE}")
        parameters = {"url": "s3://bench", "endpoint": endpoint, "credentials": references}
        tier = open_tier("s3", parameters, TierContext(CLUSTER, "bench", 0))
        try:
            for size in SIZES:
                batch = Batch(size)
                results += measure(
                    "s3",
                    tier,
                    batch,
                    lambda batch=batch: _bare_store(bare, batch, threads),  # type: ignore[misc]
                    lambda batch=batch: _bare_load(bare, batch, threads),  # type: ignore[misc]
                    setting.effort.rounds,
                )
        finally:
            tier.close()
    return results


def _bare_store(bare: S3Store, batch: Batch, threads: ThreadPoolExecutor) -> None:
    def put(number: int) -> None:
        obstore.put(bare, f"bare/{number}", [batch.headers[number], batch.data[number]], use_multipart=False)

    list(threads.map(put, range(len(batch.data))))


def _bare_load(bare: S3Store, batch: Batch, threads: ThreadPoolExecutor) -> None:
    def get(number: int) -> None:
        size = len(batch.headers[number]) + batch.block_bytes
        data = obstore.get_range(bare, f"bare/{number}", start=0, end=size)
        batch.into[number][:] = memoryview(data)[len(batch.headers[number]) :]

    list(threads.map(get, range(len(batch.data))))


@contextmanager
def _server() -> Iterator[str]:
    """Run the server of `object_server`."""
    command = [sys.executable, "-m", "benchmarks.tiers.object_server"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.communicate(timeout=_TIMEOUT_S)
