"""`python -m app.texts`: read one job from standard input and write its answer to standard output, under resource
limits."""

import os
import resource
import sys

# Set before the library is imported: threads would take address space.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import msgspec

from app.texts.jobs import CPU_S, MEMORY_BYTES, EncodeJob


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from app.texts.encode import work

    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=EncodeJob)
    sys.stdout.buffer.write(msgspec.msgpack.encode(work(job)))


main()
