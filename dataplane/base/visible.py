"""Make untrusted text safe for a terminal: control characters and invisible characters become escapes."""

import re

UNPRINTABLE = (
    r"\x00-\x1f\x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
    r"\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff"
)
"""Characters that names and notes do not contain, as part of a pattern of JSON Schema: control and format characters,
and blanks other than a space. Unassigned characters and those for private use are printable, so that the rule does not
depend on a version of Unicode."""
UNSEEN = (
    rf"{UNPRINTABLE}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e0fff"
)
"""These and the rest of Unicode's Default_Ignorable_Code_Point (including the Hangul fillers) and the blank Braille
pattern, which are invisible."""
_SURROGATES = r"\ud800-\udfff"
_UNPRINTABLE = re.compile(f"[{UNPRINTABLE}{_SURROGATES}]")
_UNSEEN = re.compile(f"[{UNSEEN}{_SURROGATES}]")


def is_printable(text: str) -> bool:
    """Return whether a name may have these characters."""
    return _UNPRINTABLE.search(text) is None


def is_seen(character: str) -> bool:
    """Return whether a character is visible or a space."""
    return _UNSEEN.match(character) is None


def is_plain(text: str) -> bool:
    """Return whether all characters are visible or spaces."""
    return _UNSEEN.search(text) is None


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
        character
        if is_seen(character) or (exempt and character in exempt)
        else character.encode("unicode_escape").decode()
        for character in text
    )
