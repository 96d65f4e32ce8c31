"""Print the output of commands: text, and tables that fit the terminal. Columns are left out, least important first,
and long texts are shortened between words.

Names, notes and reasons are untrusted text, and a terminal interprets control characters. Control characters, and
characters that change the direction of a line, are printed as escapes.
"""

import codecs
import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from dataplane.base.visible import cell as visible_cell
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
    joined = _UNIT.sub(_NO_BREAK, plain(text))
    for line in textwrap.wrap(joined, width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False):
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
        text = "".join(
            character if is_seen(character) or character in "\n\t" else json.dumps(character)[1:-1]
            for character in text
        )
    return text.encode()


# ---- tables

GAP = 2
MIN_TEXT = 16
"""Least width of a column with text before it is left out."""
CUT_NAME = 32
"""Width of a name that must be cut anyway."""
_ELLIPSIS = "…"
_CODES = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True)
class Column:
    """A column of a table of items."""

    name: str
    cell: Callable[[Any], str]
    drop: int = 0
    """The columns with the highest number are left out first where the table is too wide; those with 0 never are."""
    right: bool = False
    """Right-aligned, for numbers."""
    text: bool = False
    """Prose, which may be shortened between words."""
    wraps: bool = False
    """Text that continues on the next lines instead of being shortened."""
    least: int = 0
    """Least width in characters, so that tables that are printed one after the other line up."""
    wide: bool = False
    """Shown with `-o wide` only."""


def cells(text: str) -> int:
    """Return the number of terminal cells that a text takes."""
    if _CODES.search(text) is None:
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def table(
    title: str, columns: Sequence[Column], items: Sequence[Any], *, wide: bool = False, header: bool = True
) -> None:
    """Print a table with a row for each item. `wide` shows all columns in full, however wide the terminal is."""
    shown = [column for column in columns if wide or not column.wide]
    texts = {column.name: [visible_cell(column.cell(item)) for item in items] for column in shown}
    widths = {column.name: max(column.least, *map(cells, [column.name, *texts[column.name]])) for column in shown}
    if not wide:
        shown = _fitting(shown, widths, width())
    if title:
        write(style(plain(title), bold=True))
    if not shown:
        return
    if header:
        write(style(_line(shown, widths, [column.name for column in shown]), dim=True))
    for row in range(len(items)):
        for line in _lines(shown, widths, [texts[column.name][row] for column in shown]):
            write(line)


def _fitting(columns: Sequence[Column], widths: dict[str, int], limit: int) -> list[Column]:
    """Return the columns that fit; the widths of those that are shortened are reduced. Names are cut only if they do
    not fit even alone."""
    shown = _important(columns, widths, limit)
    if _needed([column for column in shown if not column.text], widths) > limit:
        shown = _important(columns, {name: min(width, CUT_NAME) for name, width in widths.items()}, limit)
    over = _needed(shown, widths) - limit
    over = _reduced(widths, [column for column in shown if column.text], over)
    _reduced(widths, shown, over)
    return shown


def _important(columns: Sequence[Column], widths: dict[str, int], limit: int) -> list[Column]:
    """Return the columns without those that are left out so that the others fit."""
    shown = list(columns)
    least_widths = {
        column.name: min(widths[column.name], max(MIN_TEXT, len(column.name))) if column.text else widths[column.name]
        for column in columns
    }
    while _needed(shown, least_widths) > limit and (droppable := [column for column in shown if column.drop]):
        shown.remove(max(reversed(droppable), key=lambda column: column.drop))
    return shown


def _needed(columns: Sequence[Column], widths: dict[str, int]) -> int:
    return sum(widths[column.name] for column in columns) + GAP * (len(columns) - 1)


def _reduced(widths: dict[str, int], columns: Sequence[Column], over: int) -> int:
    """Reduce the widest of the columns until nothing is over, or all have the least width. Return what is over."""
    while over > 0 and columns:
        widest = max(columns, key=lambda column: widths[column.name]).name
        if widths[widest] <= MIN_TEXT:
            break
        widths[widest] -= 1
        over -= 1
    return over


def shortened(text: str, limit: int) -> str:
    """Return the start of a text, up to the end of a word if it has several."""
    if cells(text) <= limit:
        return text
    cut = text[: limit - 1]
    while cells(cut) > limit - 1:
        cut = cut[:-1]
    start, space, _ = cut.rpartition(" ")
    return f"{(start if space and not text[len(cut) :].startswith(' ') else cut).rstrip()}{_ELLIPSIS}"


def _is_name(column: Column, text: str) -> bool:
    """Return whether a text is a name, not prose, a number, a size or a time."""
    return not column.text and not column.right and " " not in text


def _cut_name(text: str, limit: int) -> str:
    """Return the start and the end of a name: names of one kind often differ only at their end."""
    if cells(text) <= limit:
        return text
    start, end = text[: limit // 2], text[-((limit - 1) // 2) :]
    while cells(start) + cells(end) > limit - 1:
        start, end = (start[:-1], end) if cells(start) >= cells(end) else (start, end[1:])
    return f"{start}{_ELLIPSIS}{end}"


def _lines(columns: Sequence[Column], widths: dict[str, int], row: Sequence[str]) -> Iterable[str]:
    parts = [
        textwrap.wrap(text, widths[column.name], break_long_words=False, break_on_hyphens=False) or [""]
        if column.wraps
        else [(_cut_name if _is_name(column, text) else shortened)(text, widths[column.name])]
        for column, text in zip(columns, row, strict=True)
    ]
    for at in range(max(map(len, parts))):
        yield _line(columns, widths, [lines[at] if at < len(lines) else "" for lines in parts])


def _line(columns: Sequence[Column], widths: dict[str, int], row: Sequence[str]) -> str:
    padded = []
    for column, text in zip(columns, row, strict=True):
        space = " " * max(widths[column.name] - cells(text), 0)
        padded.append(space + text if column.right else text + space)
    return (" " * GAP).join(padded).rstrip()
