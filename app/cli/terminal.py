"""All that the commands print goes through here: names, notes and reasons are written by others, and a terminal obeys
what it is shown. A character that steers it, or turns the direction of a line, is shown as an escape."""

import codecs
import json
import sys
from collections.abc import Iterable
from typing import Any

import click

from app.observe.visible import is_plain, is_seen, plain


def say(text: str = "", *, err: bool = False, **style: Any) -> None:
    """One line for people; `style` is click's."""
    shown = plain(text) if text else ""
    click.echo(click.style(shown, **style) if style else shown, err=err)


def agrees(question: str) -> bool:
    """Ask yes or no. Raises Abort when nobody answers."""
    return click.confirm(plain(question))


def exact(parts: Iterable[bytes]) -> None:
    """What programs read (JSON, YAML, CSV), as it is. A terminal is shown escapes that mean the same in JSON and YAML;
    what is not UTF-8 is shown in hexadecimal there."""
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
