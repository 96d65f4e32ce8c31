"""`python -m app.texts`: one job from standard input, its answer on standard output, within limits."""

import os
import resource
import sys

os.environ["TOKENIZERS_PARALLELISM"] = (
    "false"  # before the library is there: threads would take address space
)

import msgspec

from app.texts.jobs import CPU_S, MEMORY_BYTES, Job


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from app.texts.encode import work

    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.msgpack.encode(work(job)))


main()
