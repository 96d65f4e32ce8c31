"""Report whether tests with a real vLLM ran. Without vLLM, this test is skipped and says why, and CI does not fail."""

import subprocess

import pytest

from tests.engines.vllm.engine import PYTHON, REPOSITORY


@pytest.mark.engine
def test_the_connector_can_be_imported_beside_vllm():
    if PYTHON is None:
        pytest.skip("vLLM is not built, so no test runs Larder's connector in it: run `make engines`")
    script = (
        "import sys; from dataplane.engines.vllm.connector import LarderConnector;"
        "print(sorted(name for name in ('litestar', 'sqlalchemy', 'zmq.auth', 'structlog') if name in sys.modules))"
    )
    done = subprocess.run(
        [PYTHON, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
