"""RFC 9457 problem details: every answer that is not a success."""

import msgspec

from app.errors import FieldError


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """`type` is stable and says what happened; `detail` says it in a sentence for people."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[FieldError] = []
    """Fields at fault, when there are some."""
