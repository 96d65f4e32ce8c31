"""Forks readers and writers of queues, which tests kill. Reads a JSON command per line, and ends with its input.

{"role": "read", "handle": ..., "slot": null, "remote": false}  {"pid", "event": "joined" | "wrong"}
{"role": "hang", "handle": ..., "remote": true}                 {"pid", "event": "joined"}, and reads nothing
{"role": "write", "readers": 1, "remote": null}                 {"pid", "event": "ready", "handle"}
{"role": "take over", "handle": ..., "next": 5}                 {"pid", "event": "ready", "handle"}

A writer with an endpoint for remote readers waits for one, and numbers its messages as the queue does.
"""

import json
import os
import signal
import sys

import msgspec

from dataplane.ipc.queue import MessageLost, MessageQueue, QueueHandle, QueueReader, WriterGone
from dataplane.ipc.queue.stats import queue_stats

WAIT_S = 60.0
CAPACITY = 1 << 16


def body(number: int) -> bytes:
    """What message `number` carries; each tenth is large enough for memory of its own."""
    size = CAPACITY // 2 if number % 10 == 9 else 100 + number * 37 % 900
    return number.to_bytes(8, "little") * (size // 8)


def wrong(message: dict, expected: int | None) -> bool:
    """Whether a message is not the one that follows."""
    number = message["number"]
    return message["body"] != body(number) or (expected is not None and number != expected)


def say(event: str, **fields: object) -> None:
    os.write(1, json.dumps({"pid": os.getpid(), "event": event, **fields}).encode() + b"\n")


def read(command: dict) -> None:
    handle = msgspec.convert(command["handle"], QueueHandle)
    reader = QueueReader(handle, slot=command.get("slot"), remote=command.get("remote"))
    say("joined")
    if command["role"] == "hang":
        signal.pause()
    expected = None
    while True:
        try:
            message = reader.get(WAIT_S)
        except WriterGone:
            return
        except MessageLost:  # a large message, whose memory the killed writer held
            expected = None
            continue
        if wrong(message, expected):
            say("wrong", number=message["number"], expected=expected)
        expected = message["number"] + 1


def write(command: dict) -> None:
    if command["role"] == "write":
        queue = MessageQueue(
            "killed", readers=command["readers"], capacity_bytes=CAPACITY, remote=command.get("remote")
        )
    else:
        queue = MessageQueue.take_over(msgspec.convert(command["handle"], QueueHandle))
    say("ready", handle=msgspec.to_builtins(queue.handle()))
    number = command.get("next", 0)
    if queue.handle().remote:
        queue.wait_for_readers(0, WAIT_S, remote=1)
        number = queue_stats(queue._writer.ring).messages
    while True:
        queue.put({"number": number, "body": body(number)}, WAIT_S)
        number += 1


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        command = json.loads(line)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            try:
                (read if command["role"] in ("read", "hang") else write)(command)
            except (Exception, SystemExit) as error:  # noqa: BLE001 -- the test reports it
                say("wrong", error=repr(error))
            os._exit(0)


if __name__ == "__main__":
    main()
