"""Decode request bodies as strict JSON. Litestar alone would accept `"5"` for 5 and keep the last of two equal keys."""

import json
import re
from collections import Counter
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import msgspec
from litestar import Request
from litestar.datastructures import State
from litestar.exceptions import InternalServerException
from litestar.types import Empty

from app.errors import ClientGone, Invalid, Malformed, UnsupportedMediaType
from app.http.principals import share, until_answered
from app.schemas.base.fields import MAX_TOKENS
from app.services.base.body_budget import BodyBudget
from app.services.base.fields import field_error
from app.services.base.large_work import LargeWork
from dataplane.base.field_errors import MAX_SHOWN
from dataplane.base.units import format_size

MERGE_PATCH = "application/merge-patch+json"
MAX_AT_ONCE_BYTES = 64 * 1024
"""Size of the largest body that is decoded on the event loop, which takes less than a millisecond."""
MAX_TOKENS_BODY_BYTES = 4 * 1024 * 1024
"""Size of the largest body of a request that may give token ids: enough for the most ids, each of ten digits."""
_NUMBERS = re.compile(rb"\[[\d,\s]+\]")
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^";\s]*)', re.IGNORECASE)
_MEDIA_TYPES = {False: ("application/json",), True: (MERGE_PATCH, "application/json")}


class StrictRequest(Request[Any, Any, State]):
    """A request that decodes its body as the type of the handler's `data`."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the body, and count them until the request is answered. Raises TooManyRequests and
        ServerBusy if too many bytes of bodies are under way."""
        if self._body is not Empty:  # it was read before
            async for part in super().stream():
                yield part
            return
        budget: BodyBudget = self.app.state.parts.limits.body_budget
        counted = until_answered(budget.body(share()))
        async for part in super().stream():
            counted.received(len(part))
            yield part

    async def body(self) -> bytes:
        """Return the whole body. Raises ClientGone, TooManyRequests, ServerBusy."""
        try:
            return await super().body()
        except InternalServerException as error:  # Litestar's error for a disconnected client
            raise ClientGone("the client went away before its body was here") from error

    async def json(self) -> Any:
        """Return the body as the struct that the route declares. Raises UnsupportedMediaType, Malformed (not JSON, or a
        duplicate key), Invalid (a wrong field), TooManyRequests."""
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in _MEDIA_TYPES[self.method == "PATCH"]:
            expected = " or ".join(_MEDIA_TYPES[self.method == "PATCH"])
            raise UnsupportedMediaType(f"expected content-type {expected}, got {media_type[:80] or 'none'!r}")
        self._check_encoding()
        body = await self.body()
        kind = self.route_handler.opt.get("body", Any)
        try:
            return await self.decoded(body, kind)
        except msgspec.ValidationError as error:
            fault = field_error(str(error), kind)
            raise Invalid.about([fault]) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"the body is not JSON: {error}") from None

    async def decoded(self, body: bytes, kind: Any, *, check: bool = True) -> Any:
        """Return a body as a struct; a thread decodes a large body. Raises TooManyRequests, Invalid for a body that is
        too large for token ids, and the exceptions of `decoded`."""
        if len(body) <= MAX_AT_ONCE_BYTES:
            return decoded(body, kind, check=check)
        if len(body) > MAX_TOKENS_BODY_BYTES:
            for name in {"tokens", "token_ids"} & {*getattr(kind, "__struct_fields__", ())}:
                expected = f"expected at most {MAX_TOKENS} token ids, in a body of at most"
                raise Invalid.at(name, f"{expected} {format_size(MAX_TOKENS_BODY_BYTES)}, got {len(body)} bytes")
        work: LargeWork = self.app.state.parts.limits.large_work
        try:
            return await work.run(share(), decoded, body, kind, check=check)
        finally:
            self._body = self._connection_state.body = b""  # free the bytes: handlers read the struct

    def _check_encoding(self) -> None:
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise UnsupportedMediaType(f"expected a body without content-encoding, got {encoding[:80]!r}")
        charset = _CHARSET.search(self.headers["content-type"])
        if charset is not None and charset[1].lower() not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(f"expected JSON in UTF-8, got charset {charset[1][:80]!r}")


def decoded(body: bytes, kind: Any, *, check: bool = True) -> Any:
    """Return a body as a struct. Raises msgspec.DecodeError, UnicodeDecodeError, RecursionError; Malformed for a
    duplicate key in an object if `check`."""
    value = msgspec.json.decode(body, type=kind)
    if check:
        check_keys(body)
    return value


def check_keys(body: bytes) -> None:
    """Raise Malformed for an object with a duplicate key: JSON allows it, and parsers differ in the value that they
    keep. `body` is valid JSON. Raises RecursionError."""
    # Keep numbers as text: they are decoded already, and this parser would reject some of them.
    read = partial(json.loads, object_pairs_hook=check_pairs, parse_int=str, parse_float=str)
    try:
        read(_NUMBERS.sub(b"0", body))  # token lists have no keys and are most of a large body
    except Malformed:
        read(body)  # the substitution may have made two keys equal


def check_pairs(pairs: list[tuple[str, Any]]) -> None:
    """Raise Malformed if a key occurs twice in the pairs of an object."""
    if len(dict(pairs)) == len(pairs):
        return
    counts = Counter(key for key, _ in pairs)
    twice = next(key for key, count in counts.items() if count > 1)
    raise Malformed(f"expected each key once in an object, got {twice[:MAX_SHOWN]!r} {counts[twice]} times")
