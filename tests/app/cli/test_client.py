"""How the command line asks: for how long, and what it says when nothing comes."""

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dataplane.base.visible import plain
from tests.app.command import larder, output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio
WILD = "a\u202e\x9b31m\x1b]0;x\U000e0041"
SEEN = "a\\u202e\\x9b31m\\x1b]0;x\\U000e0041"


async def test_a_wait_for_a_hanging_larder_can_be_cancelled(plane: Plane) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        err = await refused(plane, 6, "quotas", "list", "--url", url, "--timeout", "1s")
        assert err == f"Error: {url} did not answer within 1 s (--timeout)\n"
    for wrong in ("0", "soon"):
        assert "--timeout" in await refused(plane, 2, "status", "--timeout", wrong)


async def test_deletions_take_yes_and_errors_name_options(plane: Plane, node: FakeNode) -> None:
    await plane.put_quota("acme", 1)
    await output(plane, "quotas", "delete", "acme", "--yes")
    err = await refused(plane, 1, "rates", "set", "r", "--model", "m", "--tokens-per-s", "0")
    assert err.startswith("Error: --tokens-per-s: expected more than 0")
    await output(plane, "rates", "set", "r", "--model", "m", "--tokens-per-s", "10")
    assert json.loads(await output(plane, "rates", "get", "r", "--json"))["model"] == "m"
    await output(plane, "usage", "--from", "2026-11-01", "--to", "2026-11-02")


async def test_events_pushes_and_managers_are_listed(plane: Plane, node: FakeNode) -> None:
    await plane.put_quota("acme", 1)
    out = ""
    async with asyncio.timeout(60):
        while "quotas 1" not in out:  # what a node answers is written a moment after its acknowledgement
            out = await output(plane, "pushes", "list", "--type", "quotas", "--state", "acked")
    assert "this one" in await output(plane, "managers")
    assert (await output(plane, "events", "--since", "1h")).startswith("Events (")


def test_text_of_others_does_not_control_the_terminal() -> None:
    assert plain("a\u202eb\x1b[1m\x9b") == "a\\u202eb\\x1b[1m\\x9b"
    assert (plain(" "), plain("naïve 名"), plain("a\nb")) == ("' '", "naïve 名", "a\\nb")


def test_every_line_of_the_command_line_passes_the_terminal_module() -> None:
    for path in Path("app/cli").rglob("*.py"):
        if path.name not in ("terminal.py", "options.py"):  # options.py repeats what the terminal module wrote
            straight = r"click\.s?echo\(|click\.confirm\(\w+\)|^\s*print\(|sys\.stdout\.(?!isatty|fileno)"
            assert not re.findall(straight, path.read_text(), re.MULTILINE), path


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A Larder that means ill: every name is a terminal's command."""
    head = await reader.readuntil(b"\r\n\r\n")
    entity: dict[str, object] = {"tenant": WILD, "actor": WILD, "role": WILD, "tenants": [WILD], "document": {}}
    status = b"200 OK"
    if head.startswith(b"DELETE"):
        status, entity = b"409 Conflict", {"detail": f"{WILD}\nforged: ok", "errors": []}
    content = json.dumps(entity, ensure_ascii=False).encode()
    writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(content)) + content)
    await writer.drain()
    writer.close()


@pytest.fixture
async def hostile_server() -> AsyncIterator[dict[str, str]]:
    """The environment with which commands ask it."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield {**os.environ, "LARDER_URL": f"http://127.0.0.1:{port}", "LARDER_TOKEN": "larder_a_b"}


async def shown(environ: dict[str, str], *arguments: str) -> str:
    """What a terminal gets, errors included."""
    controller, terminal = os.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app", *arguments, env=environ, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    text = b""
    with contextlib.suppress(OSError):  # so a terminal says that nobody writes to it any more
        while part := await asyncio.to_thread(os.read, controller, 65_536):
            text += part
    os.close(controller)
    await process.wait()
    return text.decode().replace("\r\n", "\n")


async def test_names_in_lines_and_errors_are_escaped(hostile_server: dict[str, str]) -> None:
    assert await shown(hostile_server, "whoami") == f"{SEEN} ({SEEN} of the tenants {SEEN})\n"
    assert await shown(hostile_server, "quotas", "delete", "a") == f"Error: {SEEN}\\nforged: ok\n"


async def test_json_is_exact_and_a_terminal_is_shown_its_escapes(hostile_server: dict[str, str]) -> None:
    text = await shown(hostile_server, "whoami", "--json")
    assert json.loads(text)["actor"] == WILD
    assert text.replace("\n", "").isprintable()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app", "whoami", "--json", env=hostile_server, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert json.loads(out)["actor"] == WILD
    assert WILD[:3] in out.decode()


async def test_wide_lists_and_empty_reports_are_shown(plane: Plane, node: FakeNode) -> None:
    assert "Blocks (0)" in (await larder(plane, "blocks", "-o", "wide"))[1]
    assert "nothing was used by nobody in this time" in await output(plane, "usage", "--tenant", "nobody")


async def test_a_missing_postgres_is_reported(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("LARDER_DATABASE_URL", f"postgresql://larder:secret@127.0.0.1:{port}/larder")
    err = await refused(plane, 1, "db", "check")
    assert "the database does not answer: nothing listens at its address" in err
    assert "secret" not in err
