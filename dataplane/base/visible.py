"""Make untrusted text safe for a terminal: control characters and invisible characters become escapes."""

import re

_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point (including the Hangul fillers) and the blank Braille pattern: they are
invisible, although Python calls some of them printable."""


def is_seen(character: str) -> bool:
    """Return whether a character is visible or a space."""
    return character.isprintable() and _IGNORABLE.match(character) is None


def is_plain(text: str) -> bool:
    """Return whether all characters are visible or spaces."""
    return text.isprintable() and _IGNORABLE.search(text) is None


def plain(text: str, *, lines: bool = False) -> str:
    """Return the text with escapes for control characters, invisible characters and characters that change the
    direction of a line. A text of whitespace only is returned in quotes. With `lines`, line breaks are kept."""
    if text.isspace() and not lines:
        return repr(text)
    return text if is_plain(text) else _escaped(text, "\n" if lines else "")


def cell(text: str) -> str:
    """Return `plain(text)` for a table cell, in quotes if the text begins or ends with a space, which would be
    invisible."""
    return f"'{plain(text)}'" if text != text.strip() and not text.isspace() else plain(text)


def _escaped(text: str, exempt: str) -> str:
    return "".join(
        each if is_seen(each) or (exempt and each in exempt) else each.encode("unicode_escape").decode()
        for each in text
    )
