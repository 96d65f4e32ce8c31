"""Print the output of commands. Names, notes and reasons are untrusted text, and a terminal interprets control
characters. Control characters, and characters that change the direction of a line, are printed as escapes."""

import codecs
import json
import sys
from collections.abc import Iterable
from typing import Any

import click

from app.observe.visible import is_plain, is_seen, plain


def say(text: str = "", *, err: bool = False, **style: Any) -> None:
    """Print a line of text; `style` holds arguments of `click.style`."""
    shown = plain(text) if text else ""
    click.echo(click.style(shown, **style) if style else shown, err=err)


def agrees(question: str) -> bool:
    """Ask a yes-or-no question. Raises Abort without an answer."""
    return click.confirm(plain(question))


def exact(parts: Iterable[bytes]) -> None:
    """Print output for programs (JSON, YAML, CSV) unchanged. On a terminal, control characters become escapes that mean
    the same in JSON and YAML, and bytes that are not UTF-8 become hexadecimal escapes."""
    out = sys.stdout.buffer
    if not sys.stdout.isatty():
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
