"""`larder ipc top` shows queues and stores of all processes of the user."""

from __future__ import annotations

import json
import os

from click.testing import CliRunner

from app.cli import larder as root
from dataplane.ipc.queue import MessageQueue, QueueReader
from dataplane.ipc.store import ShmObjectStore


def test_a_live_queue_is_listed_with_its_counters() -> None:
    name = f"shown-{os.getpid()}"
    with MessageQueue(name, capacity_bytes=1 << 16) as queue, QueueReader(queue.handle()) as reader:
        for number in range(3):
            queue.put(number)
        assert reader.get(60) == 0
        shown = CliRunner().invoke(root, ["ipc", "top", "-o", "json"])
        assert shown.exit_code == 0, shown.output
        found = next(each for each in json.loads(shown.stdout)["queues"] if each["name"] == name)
        assert (found["messages"], found["writer"], found["slow_readers"]) == (3, os.getpid(), "wait")
        assert [(each["messages"], each["lag_bytes"]) for each in found["readers"]] == [(1, 128)]
        listed = CliRunner().invoke(root, ["ipc", "top"]).stdout
        assert name in listed
    assert name not in CliRunner().invoke(root, ["ipc", "top"]).stdout


def test_a_live_store_is_listed_with_its_counters() -> None:
    name = f"shown-{os.getpid()}"
    with ShmObjectStore.create(1 << 20, name=name) as store:
        store.put("key", b"12345678")
        shown = CliRunner().invoke(root, ["ipc", "top", "-o", "json"])
        assert shown.exit_code == 0, shown.output
        found = next(each for each in json.loads(shown.stdout)["stores"] if each["name"] == name)
        assert (found["objects"], found["puts"], found["data_bytes"]) == (1, 1, 1 << 20)
        assert found["pids"] == [os.getpid()]
        assert name in CliRunner().invoke(root, ["ipc", "top"]).stdout
    assert name not in CliRunner().invoke(root, ["ipc", "top"]).stdout


def test_the_list_is_shown_as_often_as_a_script_wants() -> None:
    run = CliRunner().invoke(root, ["ipc", "top", "--count", "2", "--interval", "0.1", "--json"])
    assert run.exit_code == 0, run.output
    assert run.output.count('"queues"') == 2
    once = CliRunner().invoke(root, ["ipc", "top", "--once", "--json"])
    assert (once.exit_code, once.output.count('"queues"')) == (0, 1)
    both = CliRunner().invoke(root, ["ipc", "top", "--once", "--count", "2"])
    assert both.exit_code == 2
    assert "at most one of --once and --count" in both.output
