"""Run LMCache's own `test_cache_server` against a server that listens already, with memory of the CPU for CUDA's.

Arguments: the folder that has pytest, the source archive of the release, and the server's port. Prints the outcome of
each test.
"""

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

packages, archive, port = sys.argv[1:]
sys.path.append(packages)

import pytest  # noqa: E402

NAME = "tests/v1/multiprocess/test_cache_server.py"
CUDA_WRAPPER = "from lmcache.v1.platform.devices.cuda.ipc_wrapper import CudaIPCWrapper"
CHANGES = {
    'if not (torch_dev.is_available() and torch_device_type == "cuda"):': "if False:",
    "if not _has_working_new_shared_cuda():": "if False:",
    CUDA_WRAPPER: "from lmcache.v1.platform.devices.cpu.shm import migrate_to_shm_and_wrap as CudaIPCWrapper",
    "SERVER_PORT = 5599": f"SERVER_PORT = {port}",
    '= ("zmq", "grpc")': '= ("zmq",)',
    "    run_cache_server(": "    return time.sleep(3600)\n    run_cache_server(",
    "    num_layers: int = 32,": "    num_layers: int = 2,",
}
"""What of the tests is for CUDA and for a server of their own, and what stands for it."""


class Outcomes:
    """Keeps the outcome of each test, and what it wrote if it failed."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("::")[2].partition("[")[0]
        if report.when == "call" or report.failed:
            self.of[name] = "passed" if report.passed else f"{report.outcome}: {report.longreprtext[-1500:]}"


with tarfile.open(archive) as packed:
    member = next(each for each in packed.getnames() if each.endswith(NAME))
    file = packed.extractfile(member)
    assert file is not None
    text = file.read().decode()
for theirs, ours in CHANGES.items():
    assert theirs in text, f"{member} has no {theirs!r}"
    text = text.replace(theirs, ours)
outcomes = Outcomes()
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "test_cache_server.py")
    path.write_text(text)
    os.chdir(folder)
    pytest.main(["-q", "-p", "no:cacheprovider", "-W", "ignore", f"--rootdir={folder}", str(path)], plugins=[outcomes])
print()
print(json.dumps(outcomes.of))
