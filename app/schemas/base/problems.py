"""RFC 9457 problem details: the body of every error answer."""

import msgspec

from app.errors import FieldError


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """`type` is a stable identifier of the problem; `detail` describes it in a sentence."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[FieldError] = []
    """Invalid fields, if any: at most 100. If there is more than one, `detail` says how many there are."""
