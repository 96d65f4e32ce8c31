"""Log lines: escaping, redaction, fields and repeats."""

import json
import subprocess
import sys
import textwrap
from contextlib import suppress

import structlog

from dataplane.base.log import MAX_REPEATS, MAX_SOURCES, REPEAT_WINDOW_S, Repeats

PROGRAM = """
import sys
import structlog
from dataplane.base.log import configure

writer = configure("info", sys.argv[1])
structlog.get_logger().info("request.ended", path="/a\\u202e\\x9b31m\\x1b]0;x", note="a\\nforged")
try:
    raise ValueError("\\x9b31m\\u202e")
except ValueError:
    structlog.get_logger().exception("request.crashed")
writer.close()
"""


def test_control_characters_in_values_are_escaped_in_the_log() -> None:
    for style in ("console", "json"):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, style], capture_output=True, check=True, env={"PYTHONPATH": "."}
        )
        shown = ran.stderr.decode()
        assert "\\u202e\\x9b31m" in shown or "\\u202e\\u009b31m" in shown
        assert "request.crashed" in shown
        assert not {"\u202e", "\x9b", "\x1b]"} & {*shown, *(shown[at : at + 2] for at in range(len(shown)))}
        assert "\nforged" not in shown


def log_lines(body: str, **environ: str) -> list[dict]:
    """Run a program that logs as JSON, and return its lines."""
    program = f"""
import logging, sys
import structlog
from dataplane.base import log as module
from dataplane.base.log import configure

writer = configure("info", "json")
log = structlog.get_logger()
{textwrap.dedent(body)}
writer.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": ".", **environ}
    )
    return [json.loads(line) for line in ran.stderr.splitlines()]


def test_bodies_token_ids_and_secrets_do_not_reach_the_log() -> None:
    (line,) = log_lines(
        """
        log.info(
            "block.stored", keys=[b"k" * 32] * 40, token_ids=[1, 2, 3], body=b"x" * 5000, few=[1, 2],
            tokens=list(range(9000)),
            admin_token="hunter2", token_id="t-1", nested={"password": "hunter2", "n": [b"xyz"]}, text="y" * 9000,
            url="postgresql://u:hunter2@db/x", array=memoryview(bytes(7)), empty=[], none=None,
        )
        """
    )
    assert line["keys"] == "<40 items>"
    assert line["token_ids"] == "<3 items>"
    assert line["tokens"] == "<9000 items>"
    assert line["body"] == "<5000 bytes>"
    assert line["array"] == "<7 bytes>"
    assert line["few"] == [1, 2]
    assert line["token_id"] == "t-1"
    assert line["nested"] == {"password": "<redacted>", "n": ["<3 bytes>"]}
    assert line["url"] == "postgresql://u:***@db/x"
    assert len(line["text"]) < 5000
    assert (line["empty"], line["none"]) == ([], None)
    assert "hunter2" not in json.dumps(line)


def test_lines_of_libraries_have_the_same_fields_as_our_own() -> None:
    ours, theirs = log_lines(
        """
        log.warning("push.ended", state="acked")
        logging.getLogger("some.library").warning("it %s", "b" * 6000)
        """
    )
    assert {*theirs} - {*ours} == {"logger"}
    assert (theirs["logger"], theirs["level"]) == ("some.library", "warning")
    assert len(theirs["event"]) < 5000


def test_repeated_lines_are_collapsed_and_counted_and_other_lines_are_written() -> None:
    lines = log_lines(
        """
        for number in range(1000):
            log.error("push.failed", number=number)
            logging.getLogger("noisy").error("%d failed", number)
        for number in range(10):
            log.error("push.failed", node=f"n{number}")
        log.error("push.failed", other_place=True)
        """
    )
    loops = [line for line in lines if "number" in line and "repeated" not in line]
    assert [line["number"] for line in loops] == list(range(50))
    (repeated,) = [line for line in lines if line.get("repeated") and line["event"] == "push.failed"]
    assert (repeated["repeated"], repeated["number"], repeated["level"]) == (950, 999, "error")
    assert sum(line["event"].endswith(" failed") for line in lines) == 51
    assert len([line for line in lines if "node" in line]) == 10
    assert [line for line in lines if line.get("other_place")]


def test_a_repeated_error_is_shown_again_in_each_window() -> None:
    now = 0.0
    repeats = Repeats(lambda: now)

    def shown() -> int:
        count = 0
        for _ in range(2 * MAX_REPEATS):
            with suppress(structlog.DropEvent):
                repeats(None, "", {"event": "database.lost", "level": "error"})
                count += 1
        return count

    assert shown() == MAX_REPEATS
    assert repeats.due() == []
    now = REPEAT_WINDOW_S
    assert [line["repeated"] for line in repeats.due()] == [MAX_REPEATS]
    assert shown() == MAX_REPEATS
    now = 3 * REPEAT_WINDOW_S
    assert shown() == MAX_REPEATS, "a window that nobody asked for ends, too"
    assert [line["repeated"] for line in repeats.due()] == [MAX_REPEATS]
    assert [line["repeated"] for line in repeats.due(closing=True)] == [MAX_REPEATS]


def test_many_events_are_counted_separately_in_bounded_memory() -> None:
    repeats = Repeats(lambda: 0.0)
    for number in range(3 * MAX_SOURCES):
        repeats(None, "", {"event": f"e{number}", "level": "info"})
    assert len(repeats._by_source) == MAX_SOURCES
