"""Request bodies: JSON, strictly. The framework alone would take `"5"` for 5."""

import re
from typing import Any

import msgspec
from litestar import Request
from litestar.datastructures import State
from litestar.exceptions import InternalServerException

from app.errors import BodyTooSlow, ClientGone, Invalid, Malformed, UnsupportedMediaType
from app.http.wire import SLOW_BODY, TOO_SLOW
from app.services.fields import field_error

MERGE_PATCH = "application/merge-patch+json"
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^";\s]*)', re.IGNORECASE)
_MEDIA_TYPES = {False: ("application/json",), True: (MERGE_PATCH, "application/json")}


class StrictRequest(Request[Any, Any, State]):
    """Decodes a body as the type that the handler names in `opt={"body": …}`."""

    async def body(self) -> bytes:
        """Raises ClientGone, BodyTooSlow."""
        try:
            return await super().body()
        except InternalServerException as error:  # so the framework says it
            if self.scope["state"].get(TOO_SLOW):
                raise BodyTooSlow(SLOW_BODY) from error
            raise ClientGone("the client went away before its body was here") from error

    async def json(self) -> Any:
        """Raises UnsupportedMediaType, Malformed (not JSON), Invalid (not what was expected)."""
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in _MEDIA_TYPES[self.method == "PATCH"]:
            expected = " or ".join(_MEDIA_TYPES[self.method == "PATCH"])
            raise UnsupportedMediaType(f"expected content-type {expected}, got {media_type[:80] or 'none'!r}")
        self._check_encoding()
        body = await self.body()
        kind = self.route_handler.opt.get("body", Any)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            fault = field_error(str(error), kind)
            raise Invalid(f"{fault.path}: {fault.message}", [fault]) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"the body is not JSON: {error}") from None

    def _check_encoding(self) -> None:
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise UnsupportedMediaType(f"expected a body without content-encoding, got {encoding[:80]!r}")
        charset = _CHARSET.search(self.headers["content-type"])
        if charset is not None and charset[1].lower() not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(f"expected JSON in UTF-8, got charset {charset[1][:80]!r}")
