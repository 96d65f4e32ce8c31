"""Request bodies: JSON, strictly. The framework alone would take `"5"` for 5."""

from typing import Any

import msgspec
from litestar import Request
from litestar.datastructures import State

from app.errors import Invalid, Malformed, UnsupportedMediaType
from app.services.fields import field_error

MERGE_PATCH = "application/merge-patch+json"
_MEDIA_TYPES = {False: ("application/json",), True: (MERGE_PATCH, "application/json")}


class StrictRequest(Request[Any, Any, State]):
    """Decodes a body as the type that the handler names in `opt={"body": …}`."""

    async def json(self) -> Any:
        """Raises UnsupportedMediaType, Malformed (not JSON), Invalid (not what was expected)."""
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in _MEDIA_TYPES[self.method == "PATCH"]:
            expected = " or ".join(_MEDIA_TYPES[self.method == "PATCH"])
            raise UnsupportedMediaType(f"expected content-type {expected}, got {media_type[:80] or 'none'!r}")
        body = await self.body()
        kind = self.route_handler.opt.get("body", Any)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            fault = field_error(str(error), kind)
            raise Invalid(f"{fault.path}: {fault.message}", [fault]) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"the body is not JSON: {error}") from None
