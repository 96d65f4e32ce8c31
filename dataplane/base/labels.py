"""Labels of nodes, by which records can select nodes.

Syntax as in Kubernetes: a key is a name of at most 63 characters, optionally after `prefix/`; a value has at most 63
characters. Both consist of letters, digits, `-`, `_` and `.`, with a letter or digit at both ends; a value may be
empty.
"""

import re
from collections.abc import Mapping

MAX_LABELS = 32
MAX_PART_CHARACTERS = 63
MAX_PREFIX_CHARACTERS = 253
_PART = rf"[A-Za-z0-9]([A-Za-z0-9._-]{{0,{MAX_PART_CHARACTERS - 2}}}[A-Za-z0-9])?"
_PREFIX = rf"[a-z0-9]([a-z0-9.-]{{0,{MAX_PREFIX_CHARACTERS - 2}}}[a-z0-9])?"
KEY = rf"({_PREFIX}/)?{_PART}"
VALUE = rf"({_PART})?"
"""Patterns of a label."""
PART_IN_WORDS = f"at most {MAX_PART_CHARACTERS} letters, digits, '-', '_' and '.', with a letter or digit at both ends"


def fault(labels: Mapping[str, str]) -> str:
    """Return one sentence that says what is wrong with these labels; "" if they are valid."""
    if len(labels) > MAX_LABELS:
        return f"expected at most {MAX_LABELS} labels, got {len(labels)}"
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if slash and not re.fullmatch(_PREFIX, prefix):
            return f"label {key[:80]!r}: expected a DNS name of at most {MAX_PREFIX_CHARACTERS} characters before '/'"
        if not re.fullmatch(_PART, name):
            return f"label {key[:80]!r}: expected a name of {PART_IN_WORDS}"
        if not re.fullmatch(VALUE, value):
            return f"label {key[:80]!r}: expected a value of {PART_IN_WORDS}, got {value[:80]!r}"
    return ""


def matches(labels: Mapping[str, str], selector: Mapping[str, str] | None) -> bool:
    """Return whether the selector matches a node with these labels; None matches every node."""
    return selector is None or all(labels.get(key) == value for key, value in selector.items())
