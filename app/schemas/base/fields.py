"""Types of fields that several bodies and queries have, with the patterns and bounds that the API's description shows.

The annotations describe; they refuse nothing. `app.services` checks the same constants, reports every fault at once,
and says what was expected.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from dataplane.base import labels
from dataplane.base.units import MAX_SIZE_BYTES, SIZE
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.salts import SALT
from dataplane.protocol.tiers import MAX_NAME_CHARACTERS

MAX_NOTE_CHARACTERS = 1024
MAX_MODEL_CHARACTERS = 256
MAX_KEYS = 4096
MAX_TOKENS = 262_144
"""Maximum number of token ids of a request or a pin."""
MAX_CHUNK_TOKENS = 1 << 16
MIN_WEIGHT, MAX_WEIGHT = 0.01, 1000.0
MAX_TTL_S = 10 * 366 * 86_400.0
NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}|\.\.[A-Za-z0-9._-]{1,126}"
"""A name that can stand in a URL: 1 to 128 of these characters, but not `.` or `..`."""
OWNER = r"[A-Za-z0-9._-]{0,128}"
EXPECTED_NAME = "expected 1 to 128 of the characters A-Z a-z 0-9 . _ -"
TEXT = r"[^\x00-\x1f\x7f-\x9f]*"
"""Text without control characters."""
LINES = r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*"
"""Text with line breaks and tabs, and without other control characters."""
KEY = rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}"
SPACE = r"[0-9a-fA-F]{32}"


def whole(pattern: str) -> str:
    """Return the pattern of JSON Schema for texts that a pattern matches as a whole."""
    return f"^({pattern})$"


def bounds(**keywords: Any) -> Meta:
    """Return the annotation of a field that the description shows with these keywords of JSON Schema."""
    return Meta(extra_json_schema=keywords)


def text(pattern: str, **keywords: Any) -> Meta:
    """Return the annotation of a text that a pattern matches as a whole."""
    return bounds(pattern=whole(pattern), **keywords)


RecordName = Annotated[str, text(NAME)]
OwnerName = Annotated[str, text(OWNER)]
TenantName = Annotated[str, text(SALT)]
ModelName = Annotated[str, text(TEXT, minLength=1, maxLength=MAX_MODEL_CHARACTERS)]
TierName = Annotated[str, text(TEXT, minLength=1, maxLength=MAX_NAME_CHARACTERS)]
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
