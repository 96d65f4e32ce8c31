"""The command that runs vLLM's own tests on Larder's classes: its comparison, and a run of two small tests."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.peers import environment
from benchmarks.peers.vllm_tests.__main__ import FILES, Outcome, compare, main, outcomes_of

RING = """
from vllm.distributed.device_communicators.shm_object_storage import SingleWriterShmRingBuffer

def test_ids_begin_at_0():
    ring = SingleWriterShmRingBuffer(data_buffer_size=4096, create=True)
    assert ring.allocate_buf(10)[1] == 0
    ring.close()

def test_memory_has_a_name():
    ring = SingleWriterShmRingBuffer(data_buffer_size=4096, create=True)
    assert ring.shared_memory.buf
    ring.close()

def test_nothing():
    pass
"""


def test_outcomes_of_a_report() -> None:
    lines = [
        {"test": "a.py::test_a", "used": "Ring"},
        {"test": "a.py::test_a", "outcome": "failed", "why": "wrong"},
        {"test": "a.py::test_a", "outcome": "passed", "why": ""},
        {"test": "a.py::test_b", "outcome": "passed", "why": ""},
    ]
    assert outcomes_of("\n".join(map(json.dumps, lines))) == {
        "a.py::test_a": Outcome("failed", "wrong", {"Ring"}),
        "a.py::test_b": Outcome("passed"),
    }


def test_only_unlisted_failures_on_larders_classes_are_wrong() -> None:
    failed, passed = Outcome("failed", "why"), Outcome("passed", used={"Ring"})
    theirs = {f"a.py::test_{name}": passed for name in ("good", "listed[1]", "wrong", "gone")}
    theirs["a.py::test_bad_on_both"] = failed
    ours = {
        "a.py::test_good": passed,
        "a.py::test_listed[1]": failed,
        "a.py::test_wrong": failed,
        "a.py::test_bad_on_both": failed,
    }
    lines, wrong = compare(theirs, ours, {"test_listed": "private"})
    assert wrong == ["test_wrong", "test_gone"]
    assert lines == [
        "1 passed",
        "0 passed, without an object of Larder",
        "failed: test_listed[1]: private",
        "failed: test_wrong: why",
        "failed: test_bad_on_both: failed on vLLM's classes, too",
    ]


def test_a_folder_without_vllms_tests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.vllm_tests.__main__.python", lambda peer: Path("python"))
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 2
    assert f"expected vLLM's tests, but {FILES[0]} is missing" in done.output


@pytest.mark.full
@pytest.mark.timeout(900)
def test_tests_run_on_both_classes(tmp_path: Path) -> None:
    if environment.python(environment.VLLM_TESTS) is None:
        pytest.skip("vLLM is not built for its own tests: `make vllm-tests ARGS=/a/checkout/of/vllm` builds it")
    folder = tmp_path / "tests" / "distributed"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(RING if name == "test_shm_buffer.py" else "def test_it():\n    pass\n")
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 1, done.output
    assert "1 passed\n4 passed, without an object of Larder\n" in done.output
    assert "failed: test_memory_has_a_name: " in done.output
    assert "pass on vLLM's classes only: test_memory_has_a_name" in done.output
