"""Request bodies: JSON, strictly. The framework alone would take `"5"` for 5, and the last of two equal keys."""

import asyncio
import json
import re
from functools import partial
from typing import Any

import msgspec
from litestar import Request
from litestar.datastructures import State
from litestar.exceptions import InternalServerException

from app.errors import BodyTooSlow, ClientGone, Invalid, Malformed, UnsupportedMediaType
from app.http.wire import SLOW_BODY, TOO_SLOW
from app.services.fields import MOST_SHOWN, field_error

MERGE_PATCH = "application/merge-patch+json"
MOST_AT_ONCE_BYTES = 64 * 1024
"""Of a body that is looked through on the loop: less than a millisecond."""
_NUMBERS = re.compile(rb"\[[\d,\s]+\]")
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^";\s]*)', re.IGNORECASE)
_MEDIA_TYPES = {False: ("application/json",), True: (MERGE_PATCH, "application/json")}


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Raises Malformed."""
    if len(dict(pairs)) == len(pairs):
        return
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    raise Malformed(
        f"expected each key once in an object, got {twice[:MOST_SHOWN]!r} {keys.count(twice)} times"
    )


def _look_through(body: bytes) -> None:
    """Raises Malformed, RecursionError."""
    # Numbers stay text: they have been read already, and some would be refused here.
    read = partial(json.loads, object_pairs_hook=_once, parse_int=str, parse_float=str)
    try:
        read(_NUMBERS.sub(b"0", body))  # lists of tokens have no keys, and are most of a large body
    except Malformed:
        read(body)  # names that have such a list in them may have become the same


async def check_keys(body: bytes) -> None:
    """JSON lets a key stand twice in an object, and which of the two holds is anybody's guess. `body` is JSON. Some
    microseconds for what people send; what takes longer is done beside the loop. Raises Malformed, RecursionError."""
    if len(body) > MOST_AT_ONCE_BYTES:
        await asyncio.to_thread(_look_through, body)
    else:
        _look_through(body)


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
        """Raises UnsupportedMediaType, Malformed (not JSON, or a key twice), Invalid (not what was expected)."""
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in _MEDIA_TYPES[self.method == "PATCH"]:
            expected = " or ".join(_MEDIA_TYPES[self.method == "PATCH"])
            raise UnsupportedMediaType(f"expected content-type {expected}, got {media_type[:80] or 'none'!r}")
        self._check_encoding()
        body = await self.body()
        kind = self.route_handler.opt.get("body", Any)
        try:
            decoded = msgspec.json.decode(body, type=kind)
            await check_keys(body)
        except msgspec.ValidationError as error:
            fault = field_error(str(error), kind)
            raise Invalid(f"{fault.path}: {fault.message}", [fault]) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"the body is not JSON: {error}") from None
        return decoded

    def _check_encoding(self) -> None:
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise UnsupportedMediaType(f"expected a body without content-encoding, got {encoding[:80]!r}")
        charset = _CHARSET.search(self.headers["content-type"])
        if charset is not None and charset[1].lower() not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(f"expected JSON in UTF-8, got charset {charset[1][:80]!r}")
