"""Answers with one JSON object per line, which clients read before they end.

OpenAPI 3.1 has no keyword for lines: the schema of the media type describes one line. Generators that do not know the
media type leave the answer out, so the same bytes are offered as text too.
"""

from collections.abc import AsyncIterator
from typing import Any

from litestar import Request
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Stream

NDJSON = "application/x-ndjson"
TEXT = "text/plain"


def answers_lines(of: type, description: str) -> dict[str, Any]:
    """Return the options of an operation that answers with lines, each of the type `of`."""
    spec = ResponseSpec(of, generate_examples=False, media_type=NDJSON, description=description)
    return {"answers": {200: spec}, "media_type": NDJSON, "opt": {"produces": (TEXT,)}}


def as_lines(request: Request[Any, Any, Any], lines: AsyncIterator[bytes]) -> Stream:
    """Return the answer, as text if the caller prefers that."""
    chosen = request.accept.best_match([NDJSON, TEXT]) or NDJSON
    # Litestar would prefer the media type of the route to that of a stream.
    kind = f"{TEXT}; charset=utf-8" if chosen == TEXT else chosen
    return Stream(lines, headers={"Content-Type": kind, "Vary": "Accept"})
