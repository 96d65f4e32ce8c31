"""What a log says to whom reads it."""

import subprocess
import sys

PROGRAM = """
import sys
import structlog
from app.observe.log import configure

writer = configure("info", sys.argv[1])
structlog.get_logger().info("request.ended", path="/a\\u202e\\x9b31m\\x1b]0;x", note="a\\nforged")
try:
    raise ValueError("\\x9b31m\\u202e")
except ValueError:
    structlog.get_logger().exception("request.crashed")
writer.close()
"""


def test_what_others_wrote_does_not_steer_the_terminal_that_shows_the_log() -> None:
    for style in ("console", "json"):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, style], capture_output=True, check=True, env={"PYTHONPATH": "."}
        )
        shown = ran.stderr.decode()
        assert "\\u202e\\x9b31m" in shown or "\\u202e\\u009b31m" in shown
        assert "request.crashed" in shown
        assert not {"\u202e", "\x9b", "\x1b]"} & {*shown, *(shown[at : at + 2] for at in range(len(shown)))}
        assert "\nforged" not in shown
