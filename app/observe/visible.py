"""Text of others for a terminal, which obeys what it is shown: what steers it or is not seen becomes an escape."""

import re

_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point (Hangul fillers are among them) and the empty Braille pattern: Python calls
some of them printable, and nobody sees them."""


def is_seen(character: str) -> bool:
    """Whether one character can be seen, or is the blank."""
    return character.isprintable() and _IGNORABLE.match(character) is None


def is_plain(text: str) -> bool:
    """Whether all characters can be seen."""
    return text.isprintable() and _IGNORABLE.search(text) is None


def plain(text: str, *, lines: bool = False) -> str:
    """What others wrote, without what cannot be seen and what changes the direction of a line; blanks in quotes.
    With `lines` the text may have several of them."""
    if text.isspace() and not lines:
        return repr(text)
    return text if is_plain(text) else _escaped(text, "\n" if lines else "")


def cell(text: str) -> str:
    """The same for a name or a note beside others, where a blank at an end would not be seen: in quotes then."""
    return f"'{plain(text)}'" if text != text.strip() and not text.isspace() else plain(text)


def _escaped(text: str, kept: str) -> str:
    return "".join(
        each if is_seen(each) or (kept and each in kept) else each.encode("unicode_escape").decode()
        for each in text
    )
