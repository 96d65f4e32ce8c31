"""The models of spaces, in a file of the state directory.

A tier knows its blocks by the identity of their space, and pins name models. After a restart, no engine has attached
yet. With this file, pins apply to the blocks of their models in tiers as soon as these are known.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from dataplane.tiering.tombstones import replace_file

FILE = "spaces"
MAX_SPACES = 1024
"""Number of spaces that the file names. If there are more, it names the newest."""
Run = Callable[[Callable[[], None], Callable[[object], None]], None]
_decoder = msgspec.msgpack.Decoder(dict[bytes, str])
log = structlog.stdlib.get_logger()


class KnownSpaces:
    """Models of spaces by identity (16 bytes). If the file is lost or damaged, pins apply once engines attach."""

    def __init__(self, folder: Path, run: Run) -> None:
        """`run` calls a function on another thread, and then a second one on the thread of the caller."""
        self._path = folder / FILE
        self._run = run
        self._writing = self._changed = False
        self.models: dict[bytes, str] = {}
        try:
            self.models = _decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("spaces.unreadable", path=str(self._path), reason=str(error))

    def add(self, space: bytes, model: str) -> None:
        """Record the model of a space that an engine has attached."""
        if self.models.get(space) == model:
            return
        self.models.pop(space, None)
        self.models[space] = model
        while len(self.models) > MAX_SPACES:
            del self.models[next(iter(self.models))]
        self._changed = True
        self._begin()

    def _begin(self) -> None:
        if self._writing or not self._changed:
            return
        self._writing, self._changed = True, False
        data = msgspec.msgpack.encode(self.models)
        self._run(lambda: self._write(data), self._ended)

    def _ended(self, result: object) -> None:
        self._writing = False
        self._begin()

    def _write(self, data: bytes) -> None:
        try:
            replace_file(self._path, data)
        except OSError as error:
            log.warning("spaces.not_written", path=str(self._path), reason=error.strerror)
