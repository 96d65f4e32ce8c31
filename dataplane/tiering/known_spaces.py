"""The spaces that engines have attached, in a file of the state directory.

A tier knows its blocks by the identity of their space, and pins name models. After a restart, no engine has attached
yet. With this file, pins apply to the blocks of their models in tiers as soon as these are known, and moves load blocks
into memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from dataplane.base.durable_files import checked_body, read_bounded, replace_checked
from dataplane.core.tiering.catalog import MAX_SPACES, SpaceRecords
from dataplane.protocol.spaces import Space

FILE = "spaces"
MAX_FILE_BYTES = 64 << 20
_MAGIC = b"LARDERSP1\n"
Run = Callable[[Callable[[], None], Callable[[object], None]], None]
_decoder = msgspec.msgpack.Decoder(dict[bytes, Space | str])
"""An older release wrote only the models."""
log = structlog.stdlib.get_logger()


class KnownSpaces(SpaceRecords):
    """Spaces in a file. If the file is lost or damaged, they are known once engines attach."""

    def __init__(self, folder: Path, run: Run) -> None:
        """`run` calls a function on another thread, and then a second one on the thread of the caller."""
        super().__init__(MAX_SPACES)
        self._path = folder / FILE
        self._run = run
        self._writing = self._changed = False
        try:
            data = read_bounded(self._path, MAX_FILE_BYTES)
            # Older releases wrote no digest.
            body = checked_body(data, _MAGIC) if data.startswith(_MAGIC[:1]) else data
            for identity, space_or_model in _decoder.decode(body).items():
                if isinstance(space_or_model, Space):
                    self.spaces[identity] = space_or_model
                self.models[identity] = space_or_model if isinstance(space_or_model, str) else space_or_model.model
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            log.warning("spaces.unreadable", path=str(self._path), reason=str(error))

    def add(self, identity: bytes, space: Space) -> None:
        """Record a space that an engine has attached, and begin to write the file."""
        if self.spaces.get(identity) == space:
            return
        super().add(identity, space)
        self._changed = True
        self._begin()

    def _begin(self) -> None:
        if self._writing or not self._changed:
            return
        self._writing, self._changed = True, False
        data = msgspec.msgpack.encode({**self.models, **self.spaces})
        self._run(lambda: self._write(data), self._ended)

    def _ended(self, result: object) -> None:
        self._writing = False
        self._begin()

    def _write(self, data: bytes) -> None:
        try:
            replace_checked(self._path, _MAGIC, data)
        except OSError as error:
            log.warning("spaces.not_written", path=str(self._path), reason=error.strerror)
