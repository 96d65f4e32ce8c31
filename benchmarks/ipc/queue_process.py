"""One measurement of a queue, in a process of its own: a JSON object as argument, a JSON object on the standard output.

    {"kind": "larder" | "msgspec" | "vllm", "readers": 1, "paced": 1000, "burst": 20000, "rate_hz": 330, "bytes": 1024}
    {"kind": "futex", "readers": 1, "paced": 1000, "rate_hz": 330}
    {"kind": "remote" | "pyzmq", "messages": 20000, "bytes": 1024}
    {"kind": "kills", "kills": 200}

`larder` pickles messages, as vLLM does; `msgspec` is Larder's default. `futex` is what the machine needs at least: it
stores one number and wakes processes, each of which notes the time, without a queue.

It runs with the interpreter of vLLM's environment, so that vLLM's queue is measured in the same way.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from dataplane.ipc import futex, memory
from dataplane.ipc.processes import runs, start_time
from dataplane.ipc.queue import MessageQueue, QueueReader, WriterGone

WAIT_S = 120.0
IDLE_S = 3.0
SETTLE_S = 2.0
"""Longer than vLLM's readers spin after a message."""
_STOP, _PHASE = "stop", "phase"


def _vllm() -> Any:
    from vllm.distributed.device_communicators import shm_broadcast

    return shm_broadcast.MessageQueue


def _child(work: Callable[[Connection], None]) -> tuple[int, Connection]:
    from multiprocessing import Pipe

    own_end, child_end = Pipe()
    pid = os.fork()
    if pid:
        child_end.close()
        return pid, own_end
    own_end.close()
    code = 1
    try:
        work(child_end)
        code = 0
    finally:
        os._exit(code)


def _read(kind: str, index: int, pipe: Connection) -> None:
    """Read until asked to stop. At the end of each phase, send the latencies (µs) and the CPU seconds of the phase."""
    handle = pipe.recv()
    if kind != "vllm":
        reader = QueueReader(handle, slot=index, trusted=kind == "larder")

        def get() -> Any:
            return reader.get(WAIT_S)

        reader.wait_until_ready(WAIT_S)
    else:
        vllm_queue = _vllm().create_from_handle(handle, index)
        vllm_queue.wait_until_ready()

        def get() -> Any:
            return vllm_queue.dequeue(timeout=WAIT_S)

    delays: list[float] = []
    used = time.process_time()
    while True:
        sent, body = get()
        if isinstance(body, bytes):
            delays.append((time.perf_counter_ns() - sent) / 1000)
            continue
        now = time.process_time()
        pipe.send((delays, now - used))
        delays, used = [], now
        if body == _STOP:
            return


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Latency at a steady rate, CPU while idle, and messages per second in a burst."""
    kind, count = arguments["kind"], arguments["readers"]
    if kind == "vllm":
        _vllm()  # import once, before the children
    children = [_child(partial(_read, kind, index)) for index in range(count)]
    if kind != "vllm":
        queue = MessageQueue("bench", readers=count, capacity_bytes=10 << 20, trusted=kind == "larder")
        handle, put = queue.handle(), queue.put
    else:
        vllm_queue = _vllm()(count, count, max_chunk_bytes=1 << 20, max_chunks=10)
        handle, put = vllm_queue.export_handle(), vllm_queue.enqueue
    for _, pipe in children:
        pipe.send(handle)
    if kind != "vllm":
        queue.wait_for_readers(count, WAIT_S)
    else:
        vllm_queue.wait_until_ready()
    body = os.urandom(arguments["bytes"])

    def phase(end: str = _PHASE) -> list[tuple[list[float], float]]:
        put((0, end))
        return [pipe.recv() for _, pipe in children]

    phase()
    began, used = time.perf_counter(), time.process_time()
    for number in range(arguments["paced"]):
        wait_s = began + number / arguments["rate_hz"] - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        put((time.perf_counter_ns(), body))
    took, writer = time.perf_counter() - began, time.process_time() - used
    paced = phase()
    time.sleep(SETTLE_S)
    phase()
    time.sleep(SETTLE_S)
    before = [_cpu_s(pid) for pid, _ in children]
    time.sleep(IDLE_S)
    idle = [_cpu_s(pid) - earlier for (pid, _), earlier in zip(children, before, strict=True)]
    began = time.perf_counter()
    for _ in range(arguments["burst"]):
        put((0, body))
    phase(_STOP)
    rate = arguments["burst"] / (time.perf_counter() - began)
    for pid, pipe in children:
        os.waitpid(pid, 0)
        pipe.close()
    if kind != "vllm":
        queue.close()
    delays = sorted(delay for reader_delays, _ in paced for delay in reader_delays)
    return {
        "p50_us": median(delays),
        "p99_us": delays[int(len(delays) * 0.99)],
        "reader_cpu_percent": 100 * max(used for _, used in paced) / took,
        "writer_cpu_percent": 100 * writer / took,
        "idle_cpu_percent": 100 * max(idle) / IDLE_S,
        "messages_per_s": rate,
    }


def bare_futex(arguments: dict[str, Any]) -> dict[str, Any]:
    """Latency of a number in shared memory whose readers sleep on a futex."""
    count = arguments["paced"]
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    words = memoryview(shared).cast("Q")
    address = ctypes.addressof(ctypes.c_char.from_buffer(shared))

    def read(pipe: Connection) -> None:
        delays, last = [], 0
        pipe.send(True)
        while last < count:
            futex.wait(address, last, WAIT_S)
            if words[0] != last:
                delays.append((time.perf_counter_ns() - words[1]) / 1000)
                last = words[0]
        pipe.send(delays)

    children = [_child(read) for _ in range(arguments["readers"])]
    for _, pipe in children:
        pipe.recv()
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(began + (number + 1) / arguments["rate_hz"] - time.perf_counter(), 0.0))
        words[1] = time.perf_counter_ns()
        words[0] = number + 1
        futex.wake(address)
    delays = sorted(delay for _, pipe in children for delay in pipe.recv())
    for pid, pipe in children:
        os.waitpid(pid, 0)
        pipe.close()
    return {"p50_us": median(delays), "p99_us": delays[int(len(delays) * 0.99)]}


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def remote(arguments: dict[str, Any]) -> dict[str, Any]:
    """Messages per second to one reader over ZeroMQ."""
    import zmq

    count, body = arguments["messages"], os.urandom(arguments["bytes"])
    if arguments["kind"] == "remote":

        def read(pipe: Connection) -> None:
            reader = QueueReader(pipe.recv(), remote=True)
            for _ in range(count):
                reader.get(WAIT_S)
            pipe.send(True)

        pid, pipe = _child(read)
        with MessageQueue("bench", remote="tcp://127.0.0.1") as queue:
            pipe.send(queue.handle())
            queue.wait_for_readers(0, WAIT_S, remote=1)
            began = time.perf_counter()
            for _ in range(count):
                queue.put(body, WAIT_S)
            pipe.recv()
            took = time.perf_counter() - began
    else:

        def read(pipe: Connection) -> None:
            with zmq.Context() as context, context.socket(zmq.SUB) as socket:
                socket.set(zmq.SUBSCRIBE, b"")
                socket.connect(pipe.recv())
                for _ in range(count):
                    socket.recv()
                pipe.send(True)

        pid, pipe = _child(read)
        with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
            socket.set(zmq.XPUB_NODROP, 1)  # or else a plain socket loses messages
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            pipe.send(f"tcp://127.0.0.1:{port}")
            socket.recv()
            began = time.perf_counter()
            for _ in range(count):
                socket.send(body)
            pipe.recv()
            took = time.perf_counter() - began
    os.waitpid(pid, 0)
    pipe.close()
    return {"messages_per_s": count / took}


MESSAGE_WORDS = 125


def message(number: int) -> bytes:
    """Return the message of this number, 1,000 bytes: each word is the number."""
    return number.to_bytes(8, "little") * MESSAGE_WORDS


class Sequence:
    """Checks that messages arrive whole, once each and in order."""

    def __init__(self) -> None:
        self._next = 0

    def is_wrong(self, body: bytes) -> bool:
        """Return whether this is another message than the next one."""
        number = int.from_bytes(body[:8], "little")
        is_wrong = body != message(number) or number != self._next
        self._next = number + 1
        return is_wrong


def kills(arguments: dict[str, Any]) -> dict[str, Any]:
    """The longest time for which a process was blocked by a killed one, in milliseconds; leaked memories."""

    def read(slot: int | None, before: int, pipe: Connection) -> None:
        """Send False after so many messages, and True for the first one that is wrong."""
        reader = QueueReader(pipe.recv(), slot=slot)
        sequence = Sequence()
        for at in itertools.count():
            if at == before:
                pipe.send(False)
            if sequence.is_wrong(reader.get(WAIT_S)):
                pipe.send(True)
                return

    def write(pipe: Connection) -> None:
        queue = MessageQueue("killed", readers=1, capacity_bytes=1 << 16)
        pipe.send(queue.handle())
        for number in itertools.count():
            queue.put(message(number), WAIT_S)

    put_ms = gone_ms = 0.0
    leaked = wrong_messages = 0
    for number in range(arguments["kills"]):
        queue = MessageQueue("kills", capacity_bytes=1 << 16)
        pid, pipe = _child(partial(read, None, 0))
        pipe.send(queue.handle())
        pipe.recv()
        for at in range(number % 50):
            queue.put(message(at), WAIT_S)
        _kill(pid)
        wrong_messages += _has_reported(pipe)
        for at in range(200):
            began = time.perf_counter()
            queue.put(message(number % 50 + at), WAIT_S)
            put_ms = max(put_ms, (time.perf_counter() - began) * 1000)
        identity = queue.handle().identity
        queue.close()
        leaked += any(memory.find(identity=identity))
        pipe.close()

        pid, pipe = _child(write)
        handle = pipe.recv()
        sequence = Sequence()
        with QueueReader(handle, slot=0) as reader:
            for _ in range(number % 50):
                wrong_messages += sequence.is_wrong(reader.get(WAIT_S))
            _kill(pid)
            while True:
                began = time.perf_counter()
                try:
                    wrong_messages += sequence.is_wrong(reader.get(WAIT_S))
                except WriterGone:
                    break
                finally:
                    gone_ms = max(gone_ms, (time.perf_counter() - began) * 1000)
        leaked += any(memory.find(identity=handle.identity))
        pipe.close()

        pid, pipe = _child(write)
        handle = pipe.recv()
        reader_pid, reader_pipe = _child(partial(read, 0, number % 50))
        reader_pipe.send(handle)
        wrong_messages += reader_pipe.recv()
        _kill(pid, reader_pid)
        wrong_messages += _has_reported(reader_pipe)
        leaked += any(memory.find(identity=handle.identity))
        pipe.close()
        reader_pipe.close()
    return {"put_ms": put_ms, "writer_gone_ms": gone_ms, "leaked": leaked, "wrong": wrong_messages}


def _has_reported(pipe: Connection) -> bool:
    """Return whether a reader that is gone reported a wrong message."""
    try:
        return bool(pipe.poll() and pipe.recv())
    except EOFError:
        return False


def _kill(*pids: int) -> None:
    started = [start_time(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid, start in zip(pids, started, strict=True):
        os.waitpid(pid, 0)
        assert not runs(pid, start)


WORK: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "larder": measure,
    "msgspec": measure,
    "vllm": measure,
    "futex": bare_futex,
    "remote": remote,
    "pyzmq": remote,
    "kills": kills,
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # printed text must not mix with the answer
    arguments = json.loads(sys.argv[1])
    print(json.dumps(WORK[arguments["kind"]](arguments)), file=answers)


if __name__ == "__main__":
    main()
