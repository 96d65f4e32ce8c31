"""Traces in the Mooncake format: one JSON object a line, one request an object.

`timestamp` (milliseconds), `input_length` and `output_length` (tokens) and `hash_ids`: one integer for each block of
the input, in order; equal integers mean equal content and equal prefix. Traces that Larder recorded also say whose a
request is (`tenant`) and how large its blocks are (`block_bytes`).
"""

from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from dataplane.protocol.codec import split_path
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import salt_of

BlockId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class TraceError(Exception):
    """A trace that cannot be used: the text says which file, line and field, and what was expected."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request of the trace. Unknown fields are ignored: other tools add their own."""

    timestamp: Milliseconds
    """Arrival in milliseconds from the start of the trace."""
    input_length: Count
    """Tokens of the prompt."""
    output_length: Count
    """Tokens that were generated; they are not stored."""
    hash_ids: tuple[BlockId, ...]
    """The prompt's blocks, first block first; the last may have been partial, and counts as a block."""
    block_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Bytes of one of them, in traces that Larder recorded."""
    tenant: str | None = None
    """Shown name of whose request it is, in traces that Larder recorded."""

    @property
    def salt(self) -> str:
        """The tenant's salt, empty when the trace names none. Raises ProtocolError."""
        return "" if self.tenant is None else salt_of(self.tenant)


_decoder = msgspec.json.Decoder(Request)


def read_trace(path: Path, limit: int | None = None) -> list[Request]:
    """The first `limit` requests of a file (None for all), in file order. Empty lines are skipped.

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
    return requests


def _parse(path: Path, number: int, line: bytes) -> Request:
    try:
        request = _decoder.decode(line)
        _ = request.salt  # a name that is none is told with its line, not by an engine
        return request
    except ProtocolError as error:
        raise TraceError(f"{path}:{number}: tenant: {error.message}") from None
    except msgspec.ValidationError as error:
        field, message = split_path(str(error))
        raise TraceError(f"{path}:{number}: {field + ': ' if field else ''}{message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}:{number}: expected a JSON object: {error}") from None
