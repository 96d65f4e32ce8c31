"""Repeat tests beside two busy processes until one fails: `make flaky ARGS='-k name'`."""

from __future__ import annotations

import subprocess
import sys

TIMES = 50
BUSY = 2


def main(arguments: list[str]) -> int:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        for number in range(1, TIMES + 1):
            print(f"run {number} of {TIMES}", flush=True)
            code = subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], check=False).returncode
            if code:
                return code
    finally:
        for each in busy:
            each.kill()
            each.wait(60)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
