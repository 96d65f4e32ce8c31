"""Report whether tests with the real SGLang ran. Without it, this test is skipped with a reason, also in CI."""

import subprocess

import pytest

from tests.engines.sglang.controller import PYTHON, REPOSITORY


@pytest.mark.engine
def test_the_backend_can_be_imported_beside_sglang() -> None:
    if PYTHON is None:
        pytest.skip("SGLang is not built, so no test runs Larder's backend in it: run `make engines`")
    script = (
        "import sys; from tests.engines.sglang.scripts import absent;"
        "from dataplane.engines.sglang.backend import LarderBackend;"
        "print(sorted(LarderBackend.__abstractmethods__),"
        "sorted(name for name in ('litestar', 'sqlalchemy', 'structlog') if name in sys.modules))"
    )
    done = subprocess.run(
        [PYTHON, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["[] []"]), done.stderr
