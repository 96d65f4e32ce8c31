"""A process of a fork server is like one of `Popen([sys.executable, "-m", …])`."""

import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.dataplane.plane import engine_process, line
from tests.forked import MAX_PASSED, Forked

PIPE = subprocess.PIPE


def test_a_forked_process_is_our_child_and_its_signal_is_its_exit_code(socket_dir: Path):
    environ = {"LARDER_STATE_DIR": str(socket_dir), "LARDER_LMCACHE_PORT": "0", "LARDER_POOL_BYTES": "16MiB"}
    process = Forked("dataplane", env=environ, stderr=subprocess.DEVNULL)
    try:
        assert process.poll() is None
        assert f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize("count", [1, 3, MAX_PASSED - 1])
def test_a_forked_process_has_the_descriptors_that_it_was_passed_under_their_numbers(count: int):
    """Each of `count` files is read where the test has it, also if the fork server received another one there."""
    code = "for number in sys.argv[1:]: print(number, os.read(int(number), 9).decode())"
    with ExitStack() as opened:
        files = [opened.enter_context(os.fdopen(os.memfd_create(str(at)), "r+b")) for at in range(count)]
        for at, file in enumerate(files):
            os.pwrite(file.fileno(), b"%d" % at, 0)
        passed = [file.fileno() for file in files]
        module = "tests.dataplane.engine_code"
        with Forked(module, code, *map(str, passed), env={}, pass_fds=passed, stdout=PIPE, text=True) as process:
            out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.split("\n") == [*(f"{number} {at}" for at, number in enumerate(passed)), ""]


def test_a_forked_process_has_no_descriptor_of_the_fork_server():
    with engine_process("tell(sorted(int(each) for each in os.listdir('/proc/self/fd')))") as process:
        assert line(process) == "[0, 1, 2, 3]", "the streams, and the one of the listing"
