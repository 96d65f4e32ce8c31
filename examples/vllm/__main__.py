"""Run two vLLM servers on CPU, first without Larder and then with it.

Each server has its own cache. Both answer questions about one document for two tenants, which `cache_salt` identifies.
With Larder, the second server loads the prefix that the first one computed for the same tenant, and its answers stay
the same.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.peers.environment import CONNECTOR, python
from examples.vllm.model import words, write_model
from examples.vllm.processes import STOP_SIGNALS, ExampleError, larder, vllm

DOCUMENT = words(3000, seed=1)
REQUESTS = [("a", "acme"), ("b", "acme"), ("b", "rival"), ("a", "rival")]
"""Server and tenant of each request of the table."""
BURST = [f"tenant-{number}" for number in range(6)]
"""Tenants that send requests to both servers, to measure the throughput."""
STATS_S = 1.0
"""A node reports its statistics at this interval."""
ANSWER_S = 600.0
"""Longest wait for an answer. The servers and Larder share the cores of this machine."""
STORED_S = 30.0
"""Longest wait until blocks are stored."""


@dataclass
class Answer:
    text: str
    prompt_tokens: int
    cached_tokens: int
    larder_tokens: int
    ttft_ms: float
    tpot_ms: float


def ask(url: str, tenant: str, question: int) -> Answer:
    """Ask a question about the document."""
    request = {
        "model": "tiny",
        "prompt": f"{DOCUMENT} {words(20, seed=100 + question)}",
        "cache_salt": tenant,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
    }
    response = httpx.post(f"{url}/v1/completions", json=request, timeout=ANSWER_S, trust_env=False)
    response.raise_for_status()
    body = response.json()
    return Answer(
        text=body["choices"][0]["text"],
        prompt_tokens=body["usage"]["prompt_tokens"],
        cached_tokens=body["usage"]["prompt_tokens_details"]["cached_tokens"],
        larder_tokens=((body["kv_transfer_params"] or {}).get("larder") or {}).get("loaded_tokens", 0),
        ttft_ms=body["metrics"]["time_to_first_token_ms"],
        tpot_ms=body["metrics"]["mean_itl_ms"],
    )


@contextmanager
def two_servers(folder: Path, model: Path, socket: Path | None) -> Iterator[dict[str, str]]:
    """Run two servers, with Larder if its engine socket is given. Yield their URLs by name."""
    with ExitStack() as children:
        servers = {}
        for name in "ab":
            transfer = {
                "kv_connector": "LarderConnector",
                "kv_connector_module_path": "dataplane.engines.vllm.connector",
                "kv_role": "kv_both",
                "engine_id": name,
                "kv_connector_extra_config": {
                    "larder.socket": str(socket),
                    "larder.model": "tiny",
                    "larder.min_load_tokens": 0,  # load even where this tiny model would compute as fast
                    "larder.timeout_s": 30.0,  # here the engines and the data plane compete for the same cores
                    "larder.load_timeout_s": 60.0,
                },
            }
            own = folder / f"{name}-{'larder' if socket else 'alone'}"
            servers[name] = children.enter_context(vllm(name, own, model, transfer if socket else None))
        for name, server in servers.items():
            server.wait_for("/health")
            ask(server.url, f"warm-up-{name}", 0)
        yield {name: server.url for name, server in servers.items()}


@dataclass
class Run:
    answers: list[Answer]
    tokens_per_s: float
    """Prompt tokens per second while each tenant of the burst sends a request to both servers."""


def measure(servers: dict[str, str], larder_url: str = "") -> Run:
    """Send the requests of the table one by one, and then those of the burst."""
    answers = []
    for number, (name, tenant) in enumerate(REQUESTS):
        answers.append(ask(servers[name], tenant, number))
        if larder_url:
            wait_until_stored(larder_url)
    started = time.perf_counter()
    tokens = 0
    with ThreadPoolExecutor(len(BURST)) as threads:
        for url in servers.values():
            burst = threads.map(ask, [url] * len(BURST), BURST, range(10, 10 + len(BURST)))
            tokens += sum(answer.prompt_tokens for answer in burst)
    return Run(answers, tokens / (time.perf_counter() - started))


def wait_until_stored(larder_url: str) -> None:
    """Wait until no more blocks are stored: vLLM responds before the connector has stored the prompt."""
    blocks, deadline = -1, time.monotonic() + STORED_S
    while time.monotonic() < deadline:
        before, blocks = (blocks, httpx.get(f"{larder_url}/api/v1/overview", trust_env=False).json()["pool"]["blocks"])
        if blocks == before:
            return
        time.sleep(2 * STATS_S)


def show(alone: Run, shared: Run) -> None:
    """Print the table."""
    print(f"{'':24}{'cached tokens of':>20}{'TTFT, ms':>20}{'TPOT, ms':>20}")
    print(
        f"{'engine  tenant':16}{'prompt':>8}{'vLLM':>10}{'Larder':>10}"
        + f"{'alone':>10}{'Larder':>10}" * 2
        + "  answer"
    )
    for (name, tenant), before, after in zip(REQUESTS, alone.answers, shared.answers, strict=True):
        print(
            f"{name:8}{tenant:8}{after.prompt_tokens:8}"
            f"{after.cached_tokens - after.larder_tokens:10}{after.larder_tokens:10}"
            f"{before.ttft_ms:10.0f}{after.ttft_ms:10.0f}{before.tpot_ms:10.1f}{after.tpot_ms:10.1f}"
            f"  {'the same' if before.text == after.text else 'DIFFERENT'}"
        )
    print(
        f"\nprompt tokens per second, {len(BURST)} tenants on both engines: "
        f"{alone.tokens_per_s:.0f} alone, {shared.tokens_per_s:.0f} with Larder"
    )


def check(alone: Run, shared: Run) -> None:
    """Raise ExampleError if the answers differ, or if a request was not loaded from Larder as expected."""
    if [each.text for each in alone.answers] != [each.text for each in shared.answers]:
        raise ExampleError("the answers with Larder differ from those without it")
    if [each.larder_tokens > 0 for each in shared.answers] != [False, True, False, True]:
        raise ExampleError("expected loads from Larder for the second request of each tenant, and for no other request")


def example(folder: Path, keep: bool) -> None:
    model = write_model(folder / "model")
    print("starting two vLLM servers without Larder", flush=True)
    with two_servers(folder, model, None) as servers:
        alone = measure(servers)
    with larder(folder / "larder") as running:
        print("starting Larder, and two vLLM servers that use it", flush=True)
        running.wait_for("/healthz/fleet")
        with two_servers(folder, model, folder / "larder" / "engine.sock") as servers:
            shared = measure(servers, running.url)
            show(alone, shared)
            check(alone, shared)
            if keep:
                print(f"\ndashboard: {running.url}")
                for name, url in servers.items():
                    print(f"vLLM {name}: {url}")
                print("press Ctrl-C to stop everything", flush=True)
                signal.pause()


def main() -> None:
    parser = argparse.ArgumentParser(prog="make example-vllm", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep everything running until Ctrl-C")
    options = parser.parse_args()
    if python(CONNECTOR) is None:
        sys.exit("vLLM is not built: run `make engines`")
    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="larder-example-") as folder:
            example(Path(folder), options.keep)
    except KeyboardInterrupt:
        print("stopped")
    except (ExampleError, httpx.HTTPError) as error:
        sys.exit(f"example-vllm: {error}")


def stop(_number: int, _frame: object) -> None:
    """End the example. Ignore further signals, so that they do not interrupt the stop of child processes."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    print("\nstopping; a vLLM that is still starting takes up to 20 seconds", flush=True)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
