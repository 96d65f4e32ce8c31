"""The holder: a process that has duplicates of the descriptors of a data plane's memory, so that the memory outlives
every other process of Larder. It runs from the first byte of memory on.

`python -m dataplane.holding.holder FOLDER` is a holder that a service manager or a container runs, for the data planes
of one state directory, one after the other. A data plane that finds none starts one of its own (`--given`),
which ends when it holds nothing and no peer is connected.

It imports only the standard library, and modules of this package that do the same: a holder takes 13 MB.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys

if not __package__:  # a file that is run finds `dataplane`, whose `__init__` imports nothing, three folders up
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from dataplane.holding.folder import Folder
from dataplane.holding.process import Holder

USAGE = "usage: python -m dataplane.holding.holder STATE_DIRECTORY\n"


def main(arguments: list[str]) -> int:
    """Hold the memory of one state directory. A data plane that starts a holder of its own appends `--given`, and the
    descriptors of the first connection, the lock and the listener."""
    descriptors = [int(argument) for argument in arguments[2:]] if arguments[1:2] == ["--given"] else []
    if len(arguments) not in (1, 5) or arguments[0].startswith("-"):
        sys.stderr.write(USAGE)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGHUP):  # of the terminal in which the data plane runs
        signal.signal(number, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # one descriptor for each segment, engine and connection
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = os.path.abspath(arguments[0])
    try:
        if not descriptors:  # the data plane that starts a holder has the folder, unless it was deleted since
            os.makedirs(folder, mode=0o700, exist_ok=True)
        holder = Holder(Folder(folder, *descriptors[1:]), stay=not descriptors)
    except BlockingIOError:
        sys.stderr.write(f"larder holder: another holder serves {folder}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"larder holder: {folder}: {error.strerror}\n")
        return 1
    signal.signal(signal.SIGTERM, holder.stop)
    if descriptors:
        for fd in descriptors:
            os.set_inheritable(fd, False)
        holder.serve(socket.socket(fileno=descriptors[0]))
    os.chdir("/")
    holder.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
