"""Which peers are there to be tested with. CI says what it leaves out for want of them, and does not fail."""

import subprocess

import pytest

from benchmarks.peers.environment import PEERS
from tests.peers.conftest import BUILT


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_that_is_built_works(name: str):
    python = BUILT[name]
    if python is None:
        pytest.skip(f"{name} is not built, so no test runs with it: run `make peers`")
    cuda = "from importlib.util import find_spec; print(find_spec('torch') and __import__('torch').version.cuda)"
    done = subprocess.run([python, "-c", f"{PEERS[name].proof}; {cuda}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["None"]), done.stderr
