"""Print the output of commands. Names, notes and reasons are untrusted text, and a terminal interprets control
characters. Control characters, and characters that change the direction of a line, are printed as escapes."""

import codecs
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

import click

from dataplane.base.visible import is_plain, is_seen, plain

WIDTH = 80
"""Width in characters where the output is not a terminal."""
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGTPE]?i?B|m?s|min|h|d)(?:\W|$))")
"""The space between a number and its unit."""
_NO_BREAK = "\x00"
"""Stands for such a space; `plain` leaves none in a text."""


def width() -> int:
    """Return the width of the terminal; 80 if the output is not one."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if is_terminal() else WIDTH


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def style(text: str, **styles: Any) -> str:
    """Return the text with the arguments of `click.style` applied, only on a terminal and without NO_COLOR."""
    return click.style(text, **styles) if is_terminal() and not os.environ.get("NO_COLOR") else text


def write(line: str, *, err: bool = False) -> None:
    """Print a line that is already safe."""
    click.echo(line, err=err, color=True)


def say(text: str = "", *, err: bool = False, **styles: Any) -> None:
    """Print a line of text; `styles` holds arguments of `click.style`."""
    shown = plain(text) if text else ""
    write(style(shown, **styles) if styles and not err else shown, err=err)


def wrapped(text: str) -> None:
    """Print a sentence, continued on indented lines where it is longer than the terminal is wide."""
    kept = _UNIT.sub(_NO_BREAK, plain(text))
    for line in textwrap.wrap(kept, width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False):
        write(line.replace(_NO_BREAK, " "))


def agrees(question: str) -> bool:
    """Ask a yes-or-no question. Raises Abort without an answer."""
    return click.confirm(plain(question))


def exact(parts: Iterable[bytes]) -> None:
    """Print output for programs (JSON, YAML, CSV) unchanged. On a terminal, control characters become escapes that mean
    the same in JSON and YAML, and bytes that are not UTF-8 become hexadecimal escapes."""
    out = sys.stdout.buffer
    if not is_terminal():
        for part in parts:
            out.write(part)
        out.flush()
        return
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for part in parts:
        out.write(_shown(decoder.decode(part)))
    out.write(_shown(decoder.decode(b"", final=True)))
    out.flush()


def _shown(text: str) -> bytes:
    if not is_plain(text):
        text = "".join(each if is_seen(each) or each in "\n\t" else json.dumps(each)[1:-1] for each in text)
    return text.encode()
