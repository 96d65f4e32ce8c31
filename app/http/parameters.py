"""Query parameters that several resources share."""

import re
from typing import Annotated

from litestar.params import QueryParameter

from app.errors import Invalid
from app.services.records.progress import MAX_WAIT_S

Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="Maximum number of items.")]
Cursor = Annotated[
    str, QueryParameter(max_length=2048, description="`next_cursor` of the previous page; empty for the first page.")
]
Sort = Annotated[
    str, QueryParameter(max_length=64, description="Field to sort by; prefix it with `-` for descending order.")
]
Wait = Annotated[
    str,
    QueryParameter(
        description=(
            "Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s)."
        )
    ),
]
DryRun = Annotated[
    bool, QueryParameter(description="Check the change and return the record as it would be; store nothing.")
]
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s)?", re.ASCII)


def wait_seconds(text: str, most: float = MAX_WAIT_S) -> float:
    """Return the seconds of `"2s"`, `"500ms"` or `"2"`; 0 for an empty text. Raises Invalid."""
    if not text:
        return 0.0
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else -1.0
    if not 0 <= seconds <= most:
        raise Invalid.at("wait", f"expected a time from 0s to {most:g}s such as '2s' or '500ms', got {text[:20]!r}")
    return seconds
