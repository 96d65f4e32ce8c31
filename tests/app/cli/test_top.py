"""`larder top`: a frame for scripts, and the live view in a terminal."""

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane.protocol.stats.tenants import TenantStats
from tests.app.command import output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving, settings_in

pytestmark = pytest.mark.anyio
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A command in a terminal of 80 columns."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        # Where these are set, they count instead of the size of the terminal.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.main, child = pty.openpty()
        self.resize(24, 80)
        self.given = termios.tcgetattr(child)
        self.child = child
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", *arguments], stdin=child, stdout=child, stderr=child,
            env={**inherited, "TERM": "xterm-256color", **environ}, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        )  # fmt: skip
        self.text = ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.main, keys.encode())

    def read(self, wait_s: float) -> bool:
        """Read what is there, a few KiB at most; return whether there was anything."""
        if select.select([self.main], [], [], wait_s)[0]:
            self.text += os.read(self.main, 1 << 16).decode(errors="replace")
            return True
        return False

    async def until(self, holds: Callable[[str], bool]) -> str:
        """Return the output since the last call, once the condition holds."""
        end = time.monotonic() + 90
        while not holds(self.text):
            alive = time.monotonic() < end and self.process.poll() is None
            assert alive, _ESCAPE.sub("", self.text)[-3000:]
            await asyncio.to_thread(self.read, 0.1)
        drawn, self.text = self.text, ""
        return drawn

    async def ended(self) -> tuple[int, str]:
        end = time.monotonic() + 90
        while self.process.poll() is None:
            assert time.monotonic() < end
            await asyncio.to_thread(self.read, 0.1)
        while self.read(0.1):
            pass
        return self.process.returncode, self.text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self.main)
        os.close(self.child)


@pytest.fixture
def opened() -> Iterator[list[Terminal]]:
    terminals: list[Terminal] = []
    yield terminals
    for terminal in terminals:
        terminal.close()


async def test_one_frame_fits_80_columns(plane: Plane, node: FakeNode) -> None:
    node.stats.tenants = [TenantStats("acme", bytes=3 << 30), TenantStats("x" * 100, bytes=1 << 30)]
    await plane.until_state("in_sync")
    await plane.events_flow()
    await plane.put_pin("warm")
    out = await output(plane, "top", "--once")
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    names = re.findall(r"^(acme|x+…?|node-a|warm) ", out, re.MULTILINE)
    assert [name[:6] for name in names] == ["node-a", "acme", "xxxxxx", "warm"]
    assert re.search(r"^acme .* 0 +0 *$", out, re.MULTILINE), "rates"
    assert "quit" not in out
    assert "by name" in await output(plane, "top", "--once", "--sort", "name")
    assert "this is not a terminal: --once prints one frame" in await refused(plane, 2, "top")


@pytest.mark.parametrize("way", ["q", "ctrl-c", "SIGTERM"])
async def test_the_live_view_leaves_the_terminal_clean(
    plane: Plane, node: FakeNode, opened: list[Terminal], way: str
) -> None:
    node.stats.tenants = [TenantStats("big", bytes=3 << 30), TenantStats("aaa", bytes=1 << 30)]
    await plane.until_state("in_sync")
    await plane.events_flow()
    terminal = Terminal("top", "--every", "0.2", LARDER_URL=str(plane.http.base_url), NO_COLOR="1")
    opened.append(terminal)
    frame = await terminal.until(lambda text: "by used" in text and "aaa" in text)
    assert frame.index("big") < frame.index("aaa")
    assert not re.search(r"\x1b\[(3|4|9|10)\d[;m]|38;5", frame), "no colour"
    terminal.type("n")
    frame = await terminal.until(lambda text: "by name" in text and "big" in text.partition("by name")[2])
    frame = frame.partition("by name")[2]
    assert frame.index("aaa") < frame.index("big")
    terminal.resize(30, 40)
    await terminal.until(lambda text: "by name" in text.rpartition("ready")[2] and "…" in text)
    if way == "SIGTERM":
        terminal.process.send_signal(signal.SIGTERM)
    else:
        terminal.type({"q": "q", "ctrl-c": "\x03"}[way])
    code, text = await terminal.ended()
    assert code == (143 if way == "SIGTERM" else 0), text
    assert LEAVE in text
    assert "\x1b[?25h" in text, "the cursor is shown again"
    assert "Traceback" not in text
    assert termios.tcgetattr(terminal.child) == terminal.given


async def test_a_server_that_goes_away_is_retried_until_it_is_back(socket_dir: Path, opened: list[Terminal]) -> None:
    async with serving(settings_in(socket_dir)) as plane:
        url = str(plane.http.base_url)
        terminal = Terminal("top", "--every", "0.2", LARDER_URL=url)
        opened.append(terminal)
        await terminal.until(lambda text: ENTER in text and "pool" in text)
    await terminal.until(lambda text: "no answer from" in text and "pool" in text)
    terminal.type("q")
    assert (await terminal.ended())[0] == 0
