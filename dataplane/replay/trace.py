"""Traces in the Mooncake format: one JSON object per line, one request per object.

The fields are `timestamp` (milliseconds), `input_length` and `output_length` (tokens), and `hash_ids`: one integer for
each block of the input, in order. Equal integers mean equal content and equal prefix. Traces recorded by Larder also
have the request's tenant (`tenant`) and the size of its blocks (`block_bytes`).
"""

from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from dataplane.base.field_errors import described
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import salt_of

BlockId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class TraceError(Exception):
    """A trace that cannot be used. The message names the file, the line and the field, and what was expected."""


class TraceRequest(msgspec.Struct, frozen=True, gc=False):
    """One request of the trace. Unknown fields are ignored, because other tools add their own."""

    timestamp: Milliseconds
    """Arrival in milliseconds; `read_trace` returns them from the earliest request on."""
    input_length: Count
    """Tokens of the prompt."""
    output_length: Count
    """Generated tokens; they are not stored."""
    hash_ids: tuple[BlockId, ...]
    """Blocks of the prompt, first block first. The last block may have been partial; it counts as a block."""
    block_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Size of a block in bytes, in traces recorded by Larder."""
    tenant: str | None = None
    """Displayed name of the tenant, in traces recorded by Larder."""

    @property
    def salt(self) -> str:
        """The tenant's salt; empty if the trace names no tenant. Raises ProtocolError."""
        return "" if self.tenant is None else salt_of(self.tenant)


_decoder = msgspec.json.Decoder(TraceRequest)


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """Return the first `limit` requests of a file (None for all), in file order. Skip empty lines.

    Timestamps of files may count from any moment, such as the start of a node; those returned begin at 0.

    Raises TraceError for a file that cannot be read, has no requests, or has a line that is not a request.
    """
    try:
        with path.open("rb") as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            requests = [_parse(path, number, line) for number, line in islice(lines, limit)]
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if not requests:
        raise TraceError(f"{path}: expected at least one request, found none")
    start = min(request.timestamp for request in requests)
    if not start:
        return requests
    return [msgspec.structs.replace(request, timestamp=request.timestamp - start) for request in requests]


def _parse(path: Path, number: int, line: bytes) -> TraceRequest:
    try:
        request = _decoder.decode(line)
        _ = request.salt  # an invalid name is reported with its line here, not later by an engine
        return request
    except ProtocolError as error:
        raise TraceError(f"{path}:{number}: tenant: {error.message}") from None
    except msgspec.ValidationError as error:
        field, message = described(str(error), TraceRequest)
        raise TraceError(f"{path}:{number}: {field + ': ' if field else ''}{message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}:{number}: expected a JSON object: {error}") from None
