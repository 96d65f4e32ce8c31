"""Types of fields that several bodies and queries have, with the patterns and bounds that the API's description shows.

The annotations describe; they refuse nothing. `app.services` checks the same constants, reports every fault at once,
and says what was expected. A struct's `RULES` describe in the same way how its fields depend on each other.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from dataplane.base import labels
from dataplane.base.units import MAX_SIZE_BYTES, SIZE
from dataplane.base.visible import UNPRINTABLE, UNSEEN
from dataplane.protocol.control.records import MAX_WEIGHT, MIN_WEIGHT
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.salts import MAX_SALT_CHARACTERS, SALT
from dataplane.protocol.tiers import MAX_NAME_CHARACTERS, MEMORY

MAX_NOTE_CHARACTERS = 1024
MAX_MODEL_CHARACTERS = 256
MAX_KEYS = 4096
MAX_TOKENS = 262_144
"""Maximum number of token ids of a request or a pin."""
MAX_CHUNK_TOKENS = 1 << 16
MAX_TTL_S = 10 * 366 * 86_400.0
NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}|\.\.[A-Za-z0-9._-]{1,126}"
"""A name that can stand in a URL: 1 to 128 of these characters, but not `.` or `..`."""
TIER_NAME = rf"(?!{MEMORY}$)(?=.{{1,{MAX_NAME_CHARACTERS}}}$)({NAME})"
"""The name of a tier in a record."""
OWNER = r"[A-Za-z0-9._-]{0,128}"
TEXT = rf"[^{UNPRINTABLE}]*"
"""Printable text."""
LINES = rf"([^{UNPRINTABLE}]|[\n\t])*"
"""Printable text with line breaks and tabs."""
NEW_TENANT = rf"(?! |\.{{1,2}}$)[^{UNSEEN}@/\\]{{1,{MAX_SALT_CHARACTERS}}}(?<! )"
"""A tenant, as shown, that a new record names: no blank at either end, nothing invisible, and neither `.` nor `..`."""
KEY = rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}"
SPACE = r"[0-9a-fA-F]{32}"
LOWER_SPACE = "[0-9a-f]{32}"
VARIABLE = "[A-Za-z_][A-Za-z0-9_]{0,63}"
"""The name of a special token in a chat template."""
NO_NUL = r"[^\x00]*"

IN_WORDS: Mapping[str, str] = {
    NAME: "1 to 128 of the characters A-Z a-z 0-9 . _ -",
    TIER_NAME: f"1 to {MAX_NAME_CHARACTERS} of the characters A-Z a-z 0-9 . _ -, and not {MEMORY!r}",
    OWNER: "at most 128 of the characters A-Z a-z 0-9 . _ -",
    TEXT: "printable characters",
    LINES: "printable characters, tabs and line breaks",
    NEW_TENANT: f"1 to {MAX_SALT_CHARACTERS} visible characters without @, / and \\, and no blank at either end",
    KEY: f"{2 * KEY_BYTES} hex digits",
    SPACE: "32 hex digits",
    f"|{LOWER_SPACE}": "32 hex digits in lower case, or nothing",
    NO_NUL: "text without NUL characters",
    VARIABLE: "1 to 64 of the characters A-Z a-z 0-9 _, and no digit first",
    labels.KEY: f"a label of {labels.PART_IN_WORDS}",
    labels.VALUE: f"a value of {labels.PART_IN_WORDS}",
    SIZE: "bytes, or a size such as 4GiB",
}
"""The texts that match a pattern of records' fields, in words, by pattern. The description has them as `x-expected`,
which forms show."""
EXPECTED_NAME = f"expected {IN_WORDS[NAME]}"

Rule = dict[str, Any]
"""A schema that every object of a struct meets."""


def whole(pattern: str) -> str:
    """Return the pattern of JSON Schema for texts that a pattern matches as a whole."""
    return f"^({pattern})$"


def bounds(**keywords: Any) -> Meta:
    """Return the annotation of a field that the description shows with these keywords of JSON Schema."""
    return Meta(extra_json_schema=keywords)


def text(pattern: str, **keywords: Any) -> Meta:
    """Return the annotation of a text that a pattern matches as a whole."""
    return bounds(pattern=whole(pattern), **keywords)


def given(name: str, value: Any = None) -> dict[str, Any]:
    """Return the schema of an object with this field: with this value, or with any value but null."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}} if value is None else {"const": value}}}


def at_most_one(*field_names: str) -> dict[str, Any]:
    """Return the schema of an object with at most one of these fields."""
    fields = [given(name) for name in field_names]
    return {"oneOf": [{"not": {"anyOf": fields}}, *fields]}


def implies(condition: dict[str, Any], *needed: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that meets all needs if it meets the condition."""
    return {"if": condition, "then": needed[0] if len(needed) == 1 else {"allOf": list(needed)}}


RecordName = Annotated[str, text(NAME)]
OwnerName = Annotated[str, text(OWNER)]
TenantName = Annotated[str, text(SALT)]
NewTenantName = Annotated[str, text(NEW_TENANT)]
ModelName = Annotated[str, text(TEXT, minLength=1, maxLength=MAX_MODEL_CHARACTERS)]
TierName = Annotated[str, text(TEXT, minLength=1, maxLength=MAX_NAME_CHARACTERS)]
TierRecordName = Annotated[str, text(TIER_NAME)]
PrefixLabel = Annotated[str, text(TEXT, minLength=1, maxLength=128)]
NodeName = Annotated[str, text(TEXT, minLength=1, maxLength=128)]
KeyText = Annotated[str, text(KEY)]
SpaceText = Annotated[str, text(SPACE)]
NoteText = Annotated[str, text(LINES, maxLength=MAX_NOTE_CHARACTERS)]
LabelKey = Annotated[str, text(labels.KEY)]
LabelValue = Annotated[str, text(labels.VALUE)]
Labels = Annotated[dict[LabelKey, LabelValue], Meta(max_length=labels.MAX_LABELS)]
SizeText = Annotated[str, text(SIZE)]
Size = Annotated[int, bounds(minimum=0, maximum=MAX_SIZE_BYTES)] | SizeText
"""Bytes, or text such as `4GiB`."""
TokenIds = Annotated[Sequence[Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]], bounds(minItems=1, maxItems=MAX_TOKENS)]
Keys = Annotated[list[KeyText], bounds(minItems=1, maxItems=MAX_KEYS, uniqueItems=True)]
ChunkTokens = Annotated[int, bounds(minimum=1, maximum=MAX_CHUNK_TOKENS)]
Weight = Annotated[float, bounds(minimum=MIN_WEIGHT, maximum=MAX_WEIGHT)]
TtlS = Annotated[float, bounds(exclusiveMinimum=0, maximum=MAX_TTL_S)]
Moment = float | Annotated[str, bounds(format="date-time")]
"""Unix seconds, or RFC 3339 with an offset."""
