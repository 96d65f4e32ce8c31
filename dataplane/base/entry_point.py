"""What each command of Larder does before and after its work: umask, proxies, standard streams, output that fails."""

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

_OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.EBADF, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG})
"""Errors of writing to a closed stream, to a full device, and to a terminal or a reader that is gone."""
FAILED_EXIT_CODE = 1
_LOOPBACK = "localhost,127.0.0.1,127.0.0.0/8,::1"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def prepare() -> None:
    """Set the umask, the proxies and the standard streams, whatever the caller's shell made of them.

    Files, sockets and databases belong to this user alone. No proxy is used for loopback addresses. A standard stream
    that is closed is replaced: otherwise the next file or socket would take its number, and would get the output. Input
    is empty then, output to a closed standard output fails, and errors are dropped. Characters that the terminal's
    encoding lacks are written as escapes.
    """
    os.umask(0o077)
    if any(name.lower() in _PROXIES for name in os.environ):
        for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
            hosts = os.environ.get(name) or os.environ.get(other) or ""
            if hosts.strip() != "*" and not hosts.endswith(_LOOPBACK):
                os.environ[name] = f"{hosts},{_LOOPBACK}".lstrip(",")
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - to the end of the process
    sys.stdout = _text(sys.stdout, 1)
    sys.stderr = _text(sys.stderr, 2)


def _text(stream: TextIO | None, number: int) -> TextIO:
    stream = stream or open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return stream


def run(main: Callable[[], int | None], name: str) -> int | None:
    """Run a command, and return what it returns. If its output cannot be written, print one line on standard error,
    none if the reader has exited, and return 1. `name` begins the line."""
    prepare()
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in buffers
        if error.errno != errno.EPIPE:
            with suppress(OSError):
                sys.stderr.write(f"{name}: the output cannot be written: {error.strerror}\n")
                sys.stderr.flush()
        return FAILED_EXIT_CODE
