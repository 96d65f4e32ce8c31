"""The pytest plugin in vLLM's process. It installs the shim before vLLM's tests import the classes, and writes what
happens.

Each line of the file LARDER_VLLM_TESTS_REPORT is a test's outcome, or names a test that made an object of a class of
Larder. Processes that a test starts by fork write to the same file.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import vllm  # noqa: F401  the installed vLLM, before a checkout's folder is on the path

from dataplane.engines.vllm import message_queue, object_store, shim

REPORT = "LARDER_VLLM_TESTS_REPORT"


def _write(**line: str) -> None:
    with open(os.environ[REPORT], "a", encoding="utf-8") as report:
        report.write(json.dumps(line) + "\n")


def _record_use(owner: Any) -> None:
    """Write the name of each test that makes an object of this class."""
    start = owner.__init__

    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        test = os.environ.get("PYTEST_CURRENT_TEST")
        if test:
            _write(test=test.rpartition(" ")[0], used=owner.__name__)
        start(self, *args, **kwargs)

    owner.__init__ = recorded


shim.register()
for shim_class in (
    message_queue.VllmMessageQueue,
    object_store.SingleWriterShmRingBuffer,
    object_store.SingleWriterShmObjectStorage,
):
    _record_use(shim_class)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write an outcome: of the call, and of a setup or teardown that did not pass."""
    if report.when == "call" or report.outcome != "passed":
        lines = str(report.longrepr or "").splitlines() if report.failed else []
        _write(test=report.nodeid, outcome=report.outcome, why=lines[-1] if lines else "")
