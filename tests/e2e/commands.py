"""`larder` for scripts of a shell, without its imports: a small program, for which this process forks the command."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.forked import Forked
from tests.threads import join

LIMIT_S = 120.0
MAX_REQUEST = 1 << 17
PROGRAM = """#!{python} -IS
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.connect({path!r})
request = [sys.argv[1:], dict(os.environ), os.getcwd()]
socket.send_fds(asked, [json.dumps(request).encode()], [0, 1, 2])
sys.exit(int(asked.recv(16)))
"""


@contextmanager
def larder_command(folder: Path) -> Iterator[Path]:
    """A new folder with the program `larder`, for the `PATH` of a script; it works as long as the context lasts."""
    programs = folder / "programs"
    programs.mkdir()
    path = str(programs / "asked")
    program = programs / "larder"
    program.write_text(PROGRAM.format(python=sys.executable, path=path))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        thread = threading.Thread(target=_serve, args=[listening], name="commands")
        thread.start()
        try:
            yield programs
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
            join(thread)


def _serve(listening: socket.socket) -> None:
    """Run the commands of a script, those of a pipeline at once."""
    running: list[threading.Thread] = []
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            break
        running.append(threading.Thread(target=_answer, args=[connection], name="command"))
        running[-1].start()
    join(*running)


def _answer(connection: socket.socket) -> None:
    with connection:
        body, streams, _, _ = socket.recv_fds(connection, MAX_REQUEST, 3)
        try:
            connection.send(b"%d" % _run(json.loads(body), streams))
        except BrokenPipeError:
            pass
        finally:
            for each in streams:
                os.close(each)


def _run(request: tuple[list[str], dict[str, str], str], streams: list[int]) -> int:
    arguments, environ, folder = request
    stdin, stdout, stderr = streams
    process = Forked("app", *arguments, env=environ, cwd=folder, stdin=stdin, stdout=stdout, stderr=stderr)
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait(60)
    return code if code >= 0 else 128 - code
