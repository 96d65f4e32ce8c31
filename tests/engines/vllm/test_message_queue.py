"""The interface of vLLM's message queue on Larder's, without vLLM."""

from __future__ import annotations

import pickle
import platform
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dataplane.engines.vllm.message_queue import MODULE, VllmMessageQueue
from dataplane.engines.vllm.shim import VARIABLE, register
from tests import threads

WAIT_S = 60.0


def test_objects_and_tensors_are_broadcast() -> None:
    writer = VllmMessageQueue(2, 2, local_reader_ranks=[3, 5], max_chunk_bytes=1 << 16, max_chunks=4)
    handle = pickle.loads(pickle.dumps(writer.export_handle()))
    readers = [VllmMessageQueue.create_from_handle(handle, rank) for rank in (3, 5)]
    writer.wait_until_ready()
    for reader in readers:
        reader.wait_until_ready()
    sent = {
        "method": "execute",
        "large": torch.arange(100_000, dtype=torch.bfloat16),
        "small": torch.ones(2, 3),
        "empty": torch.empty(0, 4),
        "learned": torch.ones(2, requires_grad=True),
    }
    writer.enqueue(sent)
    for reader in readers:
        found = reader.dequeue(timeout=WAIT_S)
        assert found["method"] == "execute"
        for name, tensor in sent.items():
            if isinstance(tensor, torch.Tensor):
                assert found[name].dtype == tensor.dtype
                assert torch.equal(found[name], tensor)
        found["large"].zero_()
        with pytest.raises(TimeoutError):
            reader.dequeue(timeout=0.01)
        with pytest.raises(RuntimeError, match="writer"):
            reader.enqueue(1)
    with pytest.raises(RuntimeError, match="readers"):
        writer.dequeue()


@pytest.mark.parametrize("nbytes", [64, 8 << 10, 1 << 20], ids=["inline", "beside", "own memory"])
@pytest.mark.parametrize("kind", ["tensor", "writable", "readonly"])
def test_values_stay_when_the_ring_is_used_again(kind: str, nbytes: int) -> None:
    writer = VllmMessageQueue(1, 1, max_chunk_bytes=64 << 10, max_chunks=1)
    reader = VllmMessageQueue.create_from_handle(writer.export_handle(), 0)
    array = np.full(nbytes, 17, np.uint8)
    array.flags.writeable = kind != "readonly"
    writer.enqueue(torch.from_numpy(array) if kind == "tensor" else array)
    found = reader.dequeue(timeout=WAIT_S)
    for value in range(20):
        writer.enqueue(np.full(12 << 10, value, np.uint8))
        assert (reader.dequeue(timeout=WAIT_S) == value).all()
    assert (np.asarray(found) == 17).all()
    if kind == "readonly":
        assert not found.flags.writeable
    else:
        found[0] = 42
        assert array[0] == 17


@pytest.mark.parametrize("side", ["reader", "writer"])
def test_shutdown_ends_a_wait(side: str) -> None:
    writer = VllmMessageQueue(1, 1, max_chunk_bytes=4096, max_chunks=1)
    reader = VllmMessageQueue.create_from_handle(writer.export_handle(), 0)
    errors: list[str] = []

    def wait() -> None:
        try:
            while side == "writer":
                writer.enqueue(bytes(1000))
            reader.dequeue(indefinite=True)
        except RuntimeError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    (reader if side == "reader" else writer).shutdown()
    threads.join(waiting)
    assert errors == ["cancelled"]


def test_a_wait_that_vllm_has_used_up_times_out_and_one_without_an_end_is_refused() -> None:
    writer = VllmMessageQueue(1, 1)
    reader = VllmMessageQueue.create_from_handle(writer.export_handle(), 0)
    with pytest.raises(TimeoutError):
        reader.dequeue(timeout=-1.0)
    for wait in (reader.dequeue, lambda timeout: writer.enqueue(1, timeout)):
        with pytest.raises(ValueError, match="timeout: expected"):
            wait(float("nan"))


def test_long_waits_are_logged_at_vllms_interval(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm = SimpleNamespace(VLLM_RINGBUFFER_WARNING_INTERVAL=0.001, LONG_WAIT_TIME_LOG_MSG="waited %d s")
    monkeypatch.setitem(sys.modules, MODULE, vllm)
    writer = VllmMessageQueue(1, 1)
    reader = VllmMessageQueue.create_from_handle(writer.export_handle(), 0)
    for indefinite, logged in ((False, True), (True, False)):
        caplog.clear()
        with caplog.at_level("INFO", logger="vllm.larder"), pytest.raises(TimeoutError):
            reader.dequeue(timeout=0.05, indefinite=indefinite)
        assert ("waited 0 s" in caplog.messages) == logged


class Original:
    """vLLM's class, as far as it makes objects: by the name that the shim replaces."""

    rank = -1

    def __init__(self, *args: object) -> None:
        self.args = args

    @staticmethod
    def create_from_handle(handle: object, rank: int) -> object:
        self = VllmMessageQueue.__new__(VllmMessageQueue)
        self.rank = rank
        return self

    @staticmethod
    def recv(socket: object, timeout: float | None) -> object:
        return socket, timeout


def test_queues_across_nodes_and_with_an_arena_are_vllms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VllmMessageQueue, "original", Original)
    sizes = (24 << 20, 10)
    remote = VllmMessageQueue(2, 1, connect_ip="127.0.0.1")
    assert isinstance(remote, Original)
    assert remote.args == (2, 1, None, *sizes, "127.0.0.1", False)
    arena = VllmMessageQueue(1, 1, [4], enable_shm_tensor_arena=True)
    assert isinstance(arena, Original)
    assert arena.args == (1, 1, [4], *sizes, None, True)
    reader = VllmMessageQueue.create_from_handle("a handle of vLLM", 3)
    assert isinstance(reader, Original)
    assert reader.rank == 3
    assert VllmMessageQueue.recv("socket", 1.0) == ("socket", 1.0)


def test_nothing_is_replaced_unless_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    register()
    assert VllmMessageQueue.original is None


def test_nothing_is_replaced_on_another_processor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with caplog.at_level("WARNING", logger="vllm.larder"):
        register()
    assert VllmMessageQueue.original is None
    assert "aarch64" in caplog.text
