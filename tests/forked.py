"""Processes of `python -m MODULE` without their imports, for tests that start hundreds.

The imports are most of the CPU time of a start: 0.6 s of a data plane, 0.4 s of a command, 1.5 s of `larder up`. A fork
server has imported what a group of modules needs and forks a process for each request. The process becomes a child of
the test's process, with the streams, the descriptors and the environment that were asked for, and runs the module as
`__main__`.
"""

import ctypes
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn, Self

from dataplane.ipc.processes import has_exited

START_S = 60.0
LONGEST_S = 3600.0
"""Longer than any test may take."""
PRELOADED = {
    "app": "app.asgi app.cli.support.api.client app.cli.support.printing.show app.cli.commands.machine.up uvloop"
    " app.push.joining tests.app.prepared",
    "dataplane": "argparse dataplane.compose dataplane.observe.log dataplane.holding.connection dataplane.client"
    " tests.dataplane.factories obstore.store dataplane.tiers.s3.messages",
    "dataplane.replay": "dataplane.replay.command dataplane.compose",
    "moto.server": "argparse moto.moto_server.threaded_moto_server moto.moto_server.werkzeug_app moto.s3.urls",
    "tests.gpu.paged_engine": "tests.gpu.machines dataplane.client.gpu",
    "tests.gpu.roles": "tests.gpu.machines tests.lmcache.client dataplane.compose dataplane.observe.log"
    " dataplane.client.gpu",
}
"""What the fork server of a module imports before it forks. Modules without one of their own share that of the app or
of the data plane."""
MAX_PASSED = 200
"""Descriptors of a process beside its streams."""
MAX_REQUEST = 1 << 17
"""Bytes of its arguments and environment."""
_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Forked:
    """A process like one of `subprocess.Popen([sys.executable, "-m", module, *arguments], …)`, by a fork server.

    Streams are None for those of this process, PIPE, DEVNULL, STDOUT (`stderr` alone), a descriptor or a file. With
    `text`, pipes carry text. The process first enters `namespaces`: files such as `/run/netns/NAME`.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        env: dict[str, str],
        cwd: str | os.PathLike[str] | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
        pass_fds: Sequence[int] = (),
        umask: int = -1,
        start_new_session: bool = False,
        namespaces: Sequence[str] = (),
    ) -> None:
        assert len(pass_fds) < MAX_PASSED
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._name = f"python -m {module}"
        self._readers: dict[str, _Reader] = {}
        self._reaping = threading.Lock()
        request = {
            "module": module,
            "arguments": [module, *arguments],
            "environ": env,
            "folder": os.fspath(cwd or os.getcwd()),
            "numbers": [0, 1, 2, *pass_fds],
            "namespaces": list(namespaces),
            "umask": umask,
            "start_new_session": start_new_session,
        }
        with ExitStack() as opened:  # the ends of the process, which has duplicates of them
            streams: list[int] = []
            for number, (name, stream) in enumerate({"stdin": stdin, "stdout": stdout, "stderr": stderr}.items()):
                if stream is None:
                    streams.append(number)
                elif stream == subprocess.STDOUT:
                    streams.append(streams[1])
                elif stream == subprocess.DEVNULL:
                    streams.append(opened.enter_context(open(os.devnull, "r+b", buffering=0)).fileno())
                elif stream == subprocess.PIPE:
                    ends = os.pipe()
                    own_end, end = ends[::-1] if number == 0 else ends
                    opened.callback(os.close, end)
                    streams.append(end)
                    mode = ("w" if number == 0 else "r") + ("" if text else "b")
                    setattr(self, name, os.fdopen(own_end, mode, encoding="utf-8" if text else None))
                else:
                    streams.append(stream if isinstance(stream, int) else stream.fileno())
            self.pid = _server(_group(module)).fork(request, [*streams, *pass_fds])
        self._pidfd = os.pidfd_open(self.pid)
        self._close = weakref.finalize(self, os.close, self._pidfd)

    def poll(self) -> int | None:
        """Return the exit code, minus the number of the signal that ended the process, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float = LONGEST_S) -> int:
        """Wait for the exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not has_exited(self._pidfd, timeout):
            raise subprocess.TimeoutExpired(self._name, timeout)
        with self._reaping:
            if self.returncode is None:
                ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
                assert ended is not None
                self.returncode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                self._close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, typed: Any = None, timeout: float = LONGEST_S) -> tuple[Any, Any]:
        """Write to its standard input, and return what it prints until it ends; None for a stream without a pipe.
        Raises subprocess.TimeoutExpired, after which the call may be repeated."""
        deadline = time.monotonic() + timeout
        for name, stream in {"stdout": self.stdout, "stderr": self.stderr}.items():
            if stream is not None and name not in self._readers:
                self._readers[name] = _Reader(stream)
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError), self.stdin:
                if typed:
                    self.stdin.write(typed)
        for reader in self._readers.values():
            reader.join(max(deadline - time.monotonic(), 0.0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self._name, timeout)
        self.wait(max(deadline - time.monotonic(), 0.0))
        printed = [self._readers[name].printed if name in self._readers else None for name in ("stdout", "stderr")]
        return printed[0], printed[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name, stream in {"stdin": self.stdin, "stdout": self.stdout, "stderr": self.stderr}.items():
            if stream is not None and name not in self._readers:  # which closes it
                stream.close()
        self.wait(LONGEST_S)


AnyProcess = Forked | subprocess.Popen[Any]
"""A process that is forked if it is one of Larder's modules."""


class _Reader(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, stream: IO[Any]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.printed: Any = None
        self.start()

    def run(self) -> None:
        with self._stream:
            self.printed = self._stream.read()


def run(
    module: str, *arguments: str, env: dict[str, str], typed: str = "", timeout: float = 60, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A process, to its end."""
    options = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
    with Forked(module, *arguments, env=env, text=True, **options) as process:
        try:
            out, err = process.communicate(typed, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(arguments, process.wait(timeout), out, err)


def _group(module: str) -> str:
    shared = "app" if module.startswith(("app.", "benchmarks")) else "dataplane"
    return module if module in PRELOADED else shared


class _Server:
    """The other end of a fork server, which ends with this process."""

    def __init__(self, group: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_S)
        self._turn = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", group, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[1],
            )

    def fork(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        """The PID of a new child of this process, with these descriptors as its `numbers`."""
        with self._turn:
            # The process that forks it ends at once: as an orphan it is given to the nearest subreaper, which we are.
            _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
                answer = self._socket.recv(16)
            finally:
                _libc.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the fork server ended"
        return int(answer)

    def end(self) -> None:
        """Close the connection, which ends the process."""
        self._socket.close()
        self._process.wait(START_S)


class _OwnServer(_Server):
    """A fork server that is forked from this process, with its imports."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_S)
        self._turn = threading.Lock()
        with theirs:
            self._pid = os.fork()
            if not self._pid:
                self._socket.close()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                gc.freeze()
                _become(_serve(theirs))

    def end(self) -> None:
        self._socket.close()
        os.waitpid(self._pid, 0)


def serve_from_here(group: str) -> None:
    """Let processes of a group be forked from this process as it is now. It must not have threads."""
    _servers[group] = _OwnServer()


_servers: dict[str, _Server] = {}
_starting = threading.Lock()


def _server(group: str) -> _Server:
    with _starting:
        if group not in _servers:
            _servers[group] = _Server(group)
        return _servers[group]


def end_servers() -> None:
    """End the fork servers of this process; the processes that they forked live on."""
    with _starting:
        while _servers:
            _servers.popitem()[1].end()


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork at each request until the tests end; returns the request in the forked process, an orphan."""
    while True:
        body, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST, 3 + MAX_PASSED)
        if not body:
            os._exit(0)
        if middle := os.fork():
            os.waitpid(middle, 0)
            for fd in fds:
                os.close(fd)
            continue
        middle = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == middle:
            time.sleep(0.0005)
        request = dict(json.loads(body))
        if request["start_new_session"]:
            os.setsid()
        requests.send(str(os.getpid()).encode())
        requests.close()
        _renumber(fds, request["numbers"])
        return request


def _renumber(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Move the descriptors to these numbers, which may be those of others of them."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 1 + max(numbers)) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _become(request: dict[str, Any]) -> NoReturn:
    module = request["module"]
    for name in request["namespaces"]:
        with open(name) as file:
            assert _libc.setns(file.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
    if request["umask"] != -1:
        os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    sys.argv = request["arguments"]
    sys.orig_argv = [sys.executable, "-m", module, *sys.argv[1:]]  # `larder restart` runs it again
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    name, number = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if name == "dataplane":
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # as its `main` does
    for each in PRELOADED[name].split():
        import_module(each)
    gc.freeze()  # what is shared is neither looked through nor copied by each process
    _become(_serve(socket.socket(fileno=int(number))))
