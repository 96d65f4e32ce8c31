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
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

START_S = 60.0
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


class Forked(subprocess.Popen[Any]):
    """`Popen([sys.executable, "-m", module, *arguments], …)` by a fork server; `env` must be given.

    The process first enters `namespaces`: files such as `/run/netns/NAME`.
    """

    def __init__(
        self, module: str, *arguments: str, env: dict[str, str], namespaces: Sequence[str] = (), **options: Any
    ) -> None:
        self._module = module
        self._namespaces = namespaces
        super().__init__([sys.executable, "-m", module, *arguments], env=env, **options)

    def _execute_child(self, *given: Any) -> None:
        args, _, preexec_fn, _, pass_fds, folder, environ = given[:7]
        p2cread, _, _, c2pwrite, _, errwrite = pipes = given[10:16]
        umask, start_new_session = given[20:22]
        assert preexec_fn is None
        assert len(pass_fds) < MAX_PASSED
        streams = [own if own != -1 else number for number, own in enumerate((p2cread, c2pwrite, errwrite))]
        request = {
            "module": self._module,
            "arguments": args[2:],
            "environ": environ,
            "folder": os.fspath(folder or os.getcwd()),
            "numbers": [0, 1, 2, *pass_fds],
            "namespaces": list(self._namespaces),
            "umask": umask,
            "start_new_session": start_new_session,
        }
        self.pid = _server(_group(self._module)).fork(request, [*streams, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # a private method of Popen


def run(
    module: str, *arguments: str, env: dict[str, str], typed: str = "", timeout: float = 60, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A process, to its end."""
    options = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
    with Forked(module, *arguments, env=env, encoding="utf-8", **options) as process:
        try:
            out, err = process.communicate(typed, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


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
