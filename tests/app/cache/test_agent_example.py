"""The example of an agent, with a stub of an OpenAI-compatible server and a real management plane."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.control.messages import ControlReply, ControlRequest
from dataplane.protocol.control.sessions import ActOnSession, SessionActed
from tests.app.callers import create_token
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.environ import clean_environ
from tests.free_port import free_port
from tests.threads import join

pytestmark = pytest.mark.anyio
REPOSITORY = Path(__file__).parents[3]
EXAMPLE_S = 120.0
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "count", "arguments": '{"letter": "r", "text": "strawberry"}'},
}
TURNS: list[dict[str, Any]] = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": "There are 3.", "tool_calls": None},
]


class Engine(ThreadingHTTPServer):
    """Answers chat completions with TURNS, and records their bodies."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Completions)
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Completions(BaseHTTPRequestHandler):
    server: Engine

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass

    def do_POST(self) -> None:
        bodies = self.server.bodies
        bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps({"choices": [{"message": TURNS[len(bodies) - 1]}]}).encode()
        self.send_response(200 if self.path == "/v1/chat/completions" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving_completions() -> Iterator[Engine]:
    with Engine() as engine:
        thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.05}, name="completions")
        thread.start()
        try:
            yield engine
        finally:
            engine.shutdown()
            join(thread)


async def ask(engine: Engine, larder_url: str, token: str = "") -> subprocess.CompletedProcess[str]:
    options = ["--model", "m", "--engine", engine.url, "--larder", larder_url, "--tenant", "acme"]
    options += ["--larder-timeout", str(EXAMPLE_S)]
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "examples.agent", *options, "How many r are in strawberry?"],
        cwd=REPOSITORY, env=clean_environ() | {"LARDER_TOKEN": token}, capture_output=True, text=True, check=False,
        timeout=EXAMPLE_S,
    )  # fmt: skip


async def test_an_agent_retains_its_session_for_a_tool_prefetches_it_and_releases_it(
    new_node: FakeNode, new_guarded: Plane
) -> None:
    acted: list[ActOnSession] = []

    def act(message: ControlRequest) -> ControlReply | None:
        if not isinstance(message, ActOnSession):
            return None
        acted.append(message)
        return SessionActed(message.nonce, found=True)

    await new_guarded.until_state("in_sync")
    new_node.answers = act
    token = await create_token(new_guarded, "agent", "operator", tenants=["acme"])
    with serving_completions() as engine:
        done = await ask(engine, str(new_guarded.http.base_url), token)
    assert (done.returncode, done.stdout, done.stderr) == (0, "There are 3.\n", "")
    first, second = engine.bodies
    assert first["cache_salt"] == second["cache_salt"] == "acme"
    assert first["kv_transfer_params"] == second["kv_transfer_params"]
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "3"}
    session = first["kv_transfer_params"]["larder.session"]
    assert [(each.action, each.tenant, each.session) for each in acted] == [
        ("retain", "acme", session), ("prefetch", "acme", session), ("release", "acme", session),
    ]  # fmt: skip


async def test_an_agent_answers_without_larder() -> None:
    with serving_completions() as engine:
        done = await ask(engine, f"http://127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout) == (0, "There are 3.\n")
    assert [f"{action} failed" in done.stderr for action in ("retain", "prefetch", "release")] == [True] * 3
