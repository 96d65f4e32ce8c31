"""A real data plane process, and those who talk to it: a raw engine that may say anything, and a management plane."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import zmq

from dataplane.holding.requests import signal_holders
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, code_of
from dataplane.protocol.control.messages import ControlReply
from dataplane.protocol.control.nodes import DescribeNode, Description
from dataplane.protocol.control.snapshots import Bodies, NeedBodies, Snapshot
from dataplane.protocol.engine import (
    MAX_FDS_PER_DATAGRAM,
    VERSION,
    Attach,
    Attached,
    EngineReply,
    Refused,
    SpaceRequest,
)
from dataplane.protocol.stats.node import NodeStats
from tests.dataplane import factories as make
from tests.forked import Forked
from tests.run_marks import shm_name

START_TIMEOUT_S = 90.0
WAIT_S = 60.0

_reply_decoder = decoder(EngineReply)
_control_decoder = decoder(ControlReply)


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """The first true answer of `condition`; fails with `what` at the deadline."""
    began = time.monotonic()
    while True:
        answer = condition()
        if answer:
            return answer
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"waited {timeout_s} s: {what}"
        time.sleep(min(0.01 + waited_s / 25, 0.05))  # most conditions ask another process


@dataclass
class Plane:
    """A data plane in a folder of its own. `start` again after `kill` is a new one on the same paths."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    process: Forked | None = None
    module: str = "dataplane"
    """What the process runs."""

    @property
    def socket(self) -> str:
        return str(self.folder / "engine.sock")

    @property
    def control_url(self) -> str:
        return f"ipc://{self.folder / 'control.sock'}"

    @property
    def events_url(self) -> str:
        return f"ipc://{self.folder / 'events.sock'}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def environ(self) -> dict[str, str]:
        named = {"LARDER_DATAPLANE__LMCACHE_SHM_NAME": shm_name(self.folder)} if "lmcache_port" in self.settings else {}
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("LARDER_")},
            **named,
            "LARDER_STATE_DIR": str(self.folder),
            "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
            "LARDER_POOL_BYTES": "16MiB",
            "LARDER_DATAPLANE__SEGMENT_BYTES": "2MiB",
            "LARDER_DATAPLANE__PREFAULT": "false",
            "LARDER_DATAPLANE__TICK_S": "0.01",
            "LARDER_LMCACHE_PORT": "0",
            **{f"LARDER_{name.upper()}": value for name, value in self.settings.items()},
        }

    def start(self) -> Plane:
        """Start the process and wait until it accepts connections."""
        with (self.folder / "log").open("ab") as log:
            self.process = Forked(self.module, env=self.environ, stdout=log, stderr=log)
        wait_for(lambda: self._accepts() or not self.alive, "the data plane starts", START_TIMEOUT_S)
        assert self.alive, self.log()
        return self

    def _accepts(self) -> bool:
        """The file is not enough: it lies there after a crash, and between bind and listen."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(self.socket)
            except OSError:
                return False
        return True

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Log lines of an event."""
        found = []
        for line in self.log().splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if entry.get("event") == event:
                    found.append(entry)
        return found

    def wait_logged(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """As `logged`, once there are so many: lines are written by a thread."""
        wait_for(lambda: len(self.logged(event)) >= count, f"{event} is logged")
        return self.logged(event)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9 of the data plane and of its holder: the memory is gone."""
        self.kill_process()
        if self.process is not None:
            signal_holders(self.folder, signal.SIGKILL)

    def kill_process(self) -> None:
        """kill -9 of the data plane, and wait for the end: the holder has its memory."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait(60)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        return self.process.wait(timeout=WAIT_S)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP for the block."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def manager(self) -> Manager:
        return Manager(self.control_url)

    def describe(self) -> NodeStats:
        with self.manager() as manager:
            return manager.describe()

    def wait_stats(self, condition: Callable[[NodeStats], Any], what: str, timeout_s: float = WAIT_S) -> NodeStats:
        """The node's state once `condition` holds of it; its accounts are audited then."""
        with self.manager() as manager:

            def found() -> NodeStats | None:
                stats = manager.describe(audit=False)
                return stats if condition(stats) else None

            stats: NodeStats = wait_for(found, what, timeout_s)
            manager.describe()
            return stats

    def open_fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class Manager:
    """The other end of a control socket."""

    def __init__(self, url: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(url)

    def receive(self) -> ControlReply:
        assert self.socket.poll(int(WAIT_S * 1000)), "the node answers on its control socket"
        return decode(_control_decoder, self.socket.recv())

    def ask(self, message: object) -> Any:
        self.socket.send(encode(message))
        return self.receive()

    def push(self, snapshot: Snapshot, bodies: dict[str, bytes] | None = None) -> Any:
        """Send a snapshot, give the bodies that are asked for; the final answer."""
        answer = self.ask(snapshot)
        if isinstance(answer, NeedBodies):
            given = {digest: (bodies or {})[digest] for digest in answer.digests if digest in (bodies or {})}
            answer = self.ask(Bodies(answer.nonce, given))
        return answer

    def describe(self, *, audit: bool = True) -> NodeStats:
        answer = self.ask(DescribeNode("test", audit=audit))
        assert isinstance(answer, Description)
        assert answer.faults == []
        return answer.stats

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RawEngine:
    """A connection to the engine socket that sends what a test gives it."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.connect(path)  # waits while the backlog is full, which a socket with a time-out does not
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(WAIT_S)
        self.fds: list[int] = []
        self.attached: Attached | None = None

    def send(self, data: bytes) -> None:
        self.socket.send(data)

    def receive(self) -> EngineReply | None:
        """The next answer, None when the data plane closed the connection. Fds are kept in `fds`."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 20, MAX_FDS_PER_DATAGRAM)
        except ConnectionResetError:
            return None
        self.fds += fds
        return decode(_reply_decoder, data) if data else None

    def ask(self, message: object) -> Any:
        self.send(message if isinstance(message, bytes) else encode(message))
        return self.receive()

    def refusal(self, message: object) -> tuple[Code, str]:
        """Code and field of the refusal that a message must get."""
        answer = self.ask(message)
        assert isinstance(answer, Refused), answer
        assert answer.message
        return code_of(answer.code), answer.field

    def attach(self, *spaces: SpaceRequest, group: str = "raw", **fields: Any) -> Attached:
        requests = list(spaces) or [SpaceRequest(make.space())]
        answer = self.ask(Attach(1, VERSION, group, requests, **fields))
        assert isinstance(answer, Attached), answer
        self.attached = answer
        return answer

    def close(self) -> None:
        self.socket.close()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_engine(code: str, *arguments: str) -> Forked:
    """Another process that runs `code` with `attach`, `make` and friends at hand."""
    return Forked(
        "tests.dataplane.engine_code",
        code,
        *arguments,
        env=dict(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def line(process: Forked) -> str:
    """The next line that a process says."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@contextmanager
def engine_process(code: str, *arguments: str) -> Iterator[Forked]:
    """`run_engine`, killed at the end."""
    process = run_engine(code, *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def contents(chain: Sequence[bytes], nbytes: int) -> list[bytes]:
    """Bytes of blocks that follow from their keys."""
    return [(key * (nbytes // len(key) + 1))[:nbytes] for key in chain]
