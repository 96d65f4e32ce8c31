"""The data plane of a service manager: the descriptors that the argument lists, such as `7,9`, become 3 and 4 and so
on, and LISTEN_PID is the process itself."""

import fcntl
import os
import runpy
import sys

if __name__ == "__main__":
    given = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 500) for each in sys.argv[1].split(",") if each]
    for at, fd in enumerate(given):
        os.dup2(fd, 3 + at)
        os.close(fd)
    os.environ.setdefault("LISTEN_PID", str(os.getpid()))
    sys.argv = ["dataplane"]
    runpy.run_module("dataplane", run_name="__main__", alter_sys=True)
