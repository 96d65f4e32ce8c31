"""Types of fields that a manager stores or computes with: a message with a value beyond them is malformed."""

from typing import Annotated

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""A number that a column of 63 bits can hold."""
Text = Annotated[str, msgspec.Meta(max_length=4096, pattern=r"\A[^\x00]*\Z")]
"""Text without NUL, which PostgreSQL does not store."""
Identity = Annotated[str, msgspec.Meta(max_length=128, pattern=r"\A[^\x00]*\Z")]
"""A name, an epoch, or the identity of a store."""
Digest = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[^\x00]*\Z")]
MAX_TIME_S = 1e11
Time = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_S)]
"""Unix seconds before the year 5139, not NaN."""
Finite = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
"""A number that can be rounded: neither infinite nor NaN."""
