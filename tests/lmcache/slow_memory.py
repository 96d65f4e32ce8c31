"""A data plane on a machine that takes TEST_SECONDS for every piece of memory, and that logs if its loop takes any."""

import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from dataplane.memory.pages import PageTaker

SECONDS = float(os.environ["TEST_SECONDS"])


def slow(call: Callable[..., Any], *, on_the_loop: bool) -> Callable[..., Any]:
    def slowed(*arguments: Any) -> Any:
        is_loop = threading.current_thread() is threading.main_thread()
        if on_the_loop or not is_loop:
            time.sleep(SECONDS)
        if is_loop:
            print("pages are taken on the loop", file=sys.stderr, flush=True)
        return call(*arguments)

    return slowed


if __name__ == "__main__":
    os.posix_fallocate = slow(os.posix_fallocate, on_the_loop=True)
    PageTaker.take = slow(PageTaker.take, on_the_loop=False)  # type: ignore[method-assign]
    runpy.run_module("dataplane", run_name="__main__", alter_sys=True)
