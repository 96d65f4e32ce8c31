"""What observing costs: the same replays by two Larders side by side, of which one is observed in every way.

The observed one sends all its spans to a collector, publishes KV events to a subscriber, is scraped every five seconds,
has a dashboard open and logs what it logs by default. The other one does nothing of this. Replays alternate between
them, so that a change of the machine's speed affects both; each pair gives one ratio. Where the processor counts
instructions, their ratio is the precise one: processor time differs by percents between two equal replays.
"""

import json
import math
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import httpx
import numpy as np

from benchmarks.harness.instructions import InstructionCounter
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import QUICK, Setting
from benchmarks.harness.timing import interval
from benchmarks.management_plane.running import Running, running

ROUNDS = 8
"""Two processes of one program differ by some percent for as long as they live: each round starts new ones."""
PAIRS = 3
"""Of a round."""
REQUESTS = 3_000
BLOCK = "64KiB"
"""Less than most models have."""
POOL = "256MiB"
"""Less than the replay stores, so that it evicts, too."""
TENANTS = ("acme", "research", "support")
MOST_PERCENT = 2.0
SCRAPE_S = 5.0
COLLECTOR = """
import http.server
class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
print(server.server_port, flush=True)
server.serve_forever()
"""
SUBSCRIBER = """
import sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.connect(sys.argv[1])
socket.subscribe(b"")
print("ready", flush=True)
while True:
    socket.recv_multipart()
"""


def run(setting: Setting) -> list[Result]:
    quick = setting.effort == QUICK
    with tempfile.TemporaryDirectory(prefix="larder-bench-", dir="/tmp") as name:
        trace = written_trace(Path(name) / "trace.jsonl", 100 if quick else REQUESTS)
        rounds = [
            np.median(_round(trace, Path(name) / f"{number}.sock", 1 if quick else PAIRS), axis=0)
            for number in range(1 if quick else ROUNDS)
        ]
    rows: list[Result] = []
    for figure, extra in zip(("cpu", "lookup_p50", "instructions"), np.array(rounds).T, strict=True):
        if np.isnan(extra).any():
            continue  # this machine does not count instructions
        low, high = interval(extra)
        rows += [
            at_most(f"observed_{figure}_extra", float(np.median(extra)), "%", MOST_PERCENT),
            at_most(f"observed_{figure}_extra_low", low, "%", None),
            at_most(f"observed_{figure}_extra_high", high, "%", None),
        ]
    return rows


def _round(trace: Path, kv_events: Path, count: int) -> list[np.ndarray]:
    """Percent more processor time, time of a lookup, and instructions, for each pair of replays."""
    pairs = []
    with running(LARDER_POOL_BYTES=POOL) as off, observed(kv_events) as on:
        for number in range(1 + count):
            costs = {}
            for is_on in (number % 2 == 0, number % 2 == 1):
                costs[is_on] = np.array(replay(trace, on if is_on else off))
            pairs.append(100 * (costs[True] / costs[False] - 1))
    return pairs[1:]  # the first one fills the pool


def replay(trace: Path, server: Running) -> tuple[float, float, float]:
    """Processor time of both planes and the engine in seconds, the median of a lookup in microseconds, and the
    instructions of all three."""
    attached = str(server.folder / "state" / "engine.sock")
    command = [sys.executable, "-m", "app", "replay", str(trace), "--attach", attached, "--no-verify", "--json"]
    before = server.cpu_s() + server.cpu_s(data_plane=True) + _children_s()
    instructions = server.instructions()
    with subprocess.Popen(command, env=server.environ, stdout=subprocess.PIPE, text=True) as engine:
        counter = InstructionCounter.of(engine.pid)
        try:
            output, _ = engine.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            engine.kill()
            raise
        of_engine = counter.read() if counter else math.nan
        if counter:
            counter.close()
    if engine.returncode:
        raise subprocess.CalledProcessError(engine.returncode, command, output)
    after = server.cpu_s() + server.cpu_s(data_plane=True) + _children_s()
    lookup_us = json.loads(output.splitlines()[-1])["lookup_us"]["p50"]
    return after - before, lookup_us, server.instructions() - instructions + of_engine


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def written_trace(path: Path, count: int, seed: int = 15) -> Path:
    """Write requests of three tenants that share prefixes, in Mooncake's form."""
    random = Random(seed)
    with path.open("w") as file:
        for number in range(count):
            group = random.randrange(40)
            prefix = [1 + 100 * group + at for at in range(16)]
            suffix = [1_000_000 * (1 + seed) + 16 * number + at for at in range(random.randrange(16))]
            ids = prefix + suffix
            row = {"timestamp": number, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
            file.write(json.dumps({**row, "tenant": TENANTS[group % len(TENANTS)]}) + "\n")
    return path


@contextmanager
def observed(kv_events: Path) -> Iterator[Running]:
    """A Larder with everything on."""
    with ExitStack() as stack:
        port = stack.enter_context(_process(COLLECTOR))
        events = f"ipc://{kv_events}"
        server = stack.enter_context(
            running(
                LARDER_POOL_BYTES=POOL,
                LARDER_APP__LOG_LEVEL="info",
                LARDER_KV_EVENTS_URL=events,
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            )
        )
        stack.enter_context(_process(SUBSCRIBER, events))
        ended = threading.Event()
        threads = [threading.Thread(target=target, args=(server, ended)) for target in (_scrape, _watch)]
        for thread in threads:
            thread.start()
        try:
            yield server
        finally:
            ended.set()
            for thread in threads:
                thread.join(10)


def _scrape(server: Running, ended: threading.Event) -> None:
    with client_of(server) as http:
        while not ended.wait(SCRAPE_S):
            http.get("/metrics").raise_for_status()


def _watch(server: Running, ended: threading.Event) -> None:
    """Read the events as an open dashboard does."""
    with client_of(server) as http, http.stream("GET", "/api/v1/events") as stream:
        for _ in stream.iter_bytes():
            if ended.is_set():
                return


def client_of(server: Running) -> httpx.Client:
    headers = {"authorization": f"Bearer {server.token}"}
    return httpx.Client(base_url=str(server.http.base_url), headers=headers, trust_env=False, timeout=30)


@contextmanager
def _process(code: str, *arguments: str) -> Iterator[str]:
    """Run a program, and yield the first line that it prints."""
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGKILL)
